"""Every name of the specification's documents resolves in numbadnn.theano, or stands here with the reason why it does not.

``theano_names.txt`` is what was read out of the documents; NUMBADNN_SPECIFICATION, the folder they are in, has them read again.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import numbadnn.theano

NAMES = [
    line for line in (Path(__file__).parent / "theano_names.txt").read_text().splitlines() if not line.startswith("#")
]

#: parts of a graph compiler: an eager library has nothing to compile, fold or differentiate symbolically
NO_EAGER_MEANING = {
    "CDataMaker", "MakerCDataType", "L_op", "c_code", "c_code_cache_version", "c_compile_args", "c_header_dirs", "c_headers",
    "c_lib_dirs", "c_libraries", "c_support_code", "do_constant_folding", "grad", "make_node", "prepare_node",
}  # fmt: skip

#: names of methods -> the class that has them
METHODS = {
    "apply": "RNNBlock", "get_param_size": "RNNBlock", "split_params": "RNNBlock", "flops": "BaseAbstractConv",
    "unshared2d": "BaseAbstractConv", "get_out_shape": "GpuDnnConv",
}  # fmt: skip

#: what is still to be written; a name that resolves must leave this table
OWED: set[str] = set()


def resolves(name: str) -> bool:
    if name in METHODS:
        return hasattr(getattr(numbadnn.theano, METHODS[name], None), name)
    return hasattr(numbadnn.theano, name)


@pytest.mark.parametrize("name", NAMES)
def test_name(name: str) -> None:
    if name in NO_EAGER_MEANING:
        assert not resolves(name)
    elif name in OWED:
        assert not resolves(name), f"{name} is there: take it off the list of what is owed"
    else:
        assert resolves(name)


def test_tables_hold_names_of_the_documents() -> None:
    assert set(NAMES) >= NO_EAGER_MEANING | OWED | set(METHODS)
    assert sorted(set(NAMES)) == NAMES


def test_names_under_the_specifications_modules() -> None:
    from numbadnn.theano import conv, conv3d2d, dnn, nnet

    assert dnn.dnn_conv is numbadnn.theano.dnn_conv and nnet.conv2d is numbadnn.theano.conv2d
    assert conv.conv2d is not numbadnn.theano.conv2d and conv3d2d.conv3d is not numbadnn.theano.conv3d
    assert {"conv2d", "dnn_conv", "config", "conv"} <= set(dir(numbadnn.theano))
    with pytest.raises(AttributeError, match="no attribute 'dnn_convolution'"):
        _ = numbadnn.theano.dnn_convolution


@pytest.mark.parametrize("module", ("numbadnn.theano.abstract_conv", "numbadnn.theano.nnet.abstract_conv"))
def test_abstract_conv_is_a_module_of_the_specification(module: str) -> None:
    """With its own conv2d and the upsampling that the documents have in it; in a process that has imported no module of them."""
    code = f"""
import numpy as np, numbadnn.theano
module = {module}
names = ("bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling", "frac_bilinear_upsampling")
assert all(getattr(module, name) is getattr(numbadnn.theano, name) for name in (*names, "conv3d", "get_conv_output_shape"))
x, w = np.arange(50, dtype="f4").reshape(1, 2, 5, 5), np.arange(8, dtype="f4").reshape(1, 2, 2, 2)
y = module.conv2d(x, w, x.shape, w.shape, "valid", (1, 1), False, (2, 3))  # no image_shape before the dilation
seen = [x[:, :, i : i + 3, j : j + 2] * w[0, :, i // 2, j // 3][:, None, None] for i in (0, 2) for j in (0, 3)]
assert np.array_equal(y[:, 0], sum(part.sum(1) for part in seen))
assert numbadnn.theano.conv2d is numbadnn.theano.nnet.conv2d is not module.conv2d
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ("numbadnn.theano", "numbadnn.theano.dnn", "numbadnn.theano.nnet"))
def test_every_name_can_be_listed_and_imported_at_once(module: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {module} import *", names)
    assert {"conv2d", "dnn_conv", "dnn_pool", "bilinear_upsampling", "RNNBlock", "abstract_conv"} <= set(names)
    assert names["conv2d"] is numbadnn.theano.conv2d
    assert set(dir(importlib.import_module(module))) == set(names) - {"__builtins__"} == set(dir(numbadnn.theano))


def test_the_module_of_the_specification_has_its_own_conv2d_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from numbadnn.theano.abstract_conv import *", names)
    assert names["conv2d"] is numbadnn.conv2d and "bilinear_upsampling" in names


@pytest.mark.skipif("NUMBADNN_SPECIFICATION" not in os.environ, reason="the documents are not part of the repository")
def test_list_is_what_the_documents_say() -> None:
    found: set[str] = set()
    for path in Path(os.environ["NUMBADNN_SPECIFICATION"]).rglob("*.txt"):
        text = path.read_text(errors="replace")
        found |= set(re.findall(r"theano\.(?:gpuarray|sandbox\.cuda|tensor\.nnet)[\w.]*\.\s*(\w+)\s*[\(\[]", text))
        found |= set(re.findall(r"^\s*(\w+)\s*\n?\([^)]*\)\s*\[source\]", text, re.MULTILINE))
        found |= set(re.findall(r"\b((?:Gpu)?Corr(?:3d)?MM(?:_grad\w+)?)\b", text))
    assert found and found <= set(NAMES)


#: takes the older document's first argument, too, so that its signature names none
EITHER_ORDER = {"GpuDnnSoftmax", "GpuDnnSoftmaxBase", "GpuDnnSoftmaxGrad"}


@pytest.mark.skipif("NUMBADNN_SPECIFICATION" not in os.environ, reason="the documents are not part of the repository")
def test_parameters_are_those_of_the_documents_in_their_order() -> None:
    """Of the later documents; each in the module that they have it in. ``fgraph`` is an artefact of the page's generator."""
    pattern = r"(theano\.(?:gpuarray\.dnn|tensor\.nnet)[\w.]*)\.\s*(\w+)\s*\n?\(((?:[^()]|\([^()]*\))*)\)\s*\[source\]"
    seen = set()
    for path in Path(os.environ["NUMBADNN_SPECIFICATION"]).rglob("*.txt"):
        for where, name, arguments in re.findall(pattern, path.read_text(errors="replace")):
            if name in NO_EAGER_MEANING | EITHER_ORDER:
                continue
            module = where.rpartition(".")[2]
            owner = importlib.import_module(f"numbadnn.theano.{module}")
            arguments = re.sub("[\u2018\u2019]", "'", arguments)  # the pages' quotation marks
            function = ast.parse(f"def f({arguments}): pass").body[0]
            assert isinstance(function, ast.FunctionDef)
            wanted = [a.arg for a in function.args.args if a.arg != "fgraph"]
            found = [n for n in inspect.signature(getattr(owner, name)).parameters if n not in ("args", "kwargs")]
            assert found[: len(wanted)] == wanted, f"{where}.{name}"
            seen.add((module, name))
    assert {("nnet", "conv2d"), ("abstract_conv", "conv2d"), ("conv", "conv2d"), ("dnn", "dnn_conv")} <= seen


def test_a_name_that_is_not_here_says_where_to_look() -> None:
    from numbadnn import cupyx_cudnn, theano

    for module, name, text in (
        (theano, "function", "port-from-theano.md"),
        (theano.nnet, "categorical_crossentropy", "port-from-theano.md"),
        (theano.tensor, "matrix", "tensors are arrays here"),
        (cupyx_cudnn, "rnn_forward_training", "from-cupy-cudnn.md"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{text}"):
            getattr(module, name)
        assert not hasattr(module, "__nothing__")

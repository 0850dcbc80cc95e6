"""Every private name of Numba that the library uses; others are in its documentation. Another version may have moved any of them.

``from numbadnn.host.numba_names import JITCodeLibrary`` imports it from where Numba has it. ``ATTRIBUTES`` are what is called,
replaced or set in what is imported. pyproject.toml admits the versions that were tried; ``tests/process/test_private_names.py``
says what a new one lacks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

#: name -> the module that has it, or whose submodule it is
NAMES = {
    "AttributeTemplate": "numba.core.typing.templates",
    "BaseFunction": "numba.core.types.functions",
    "CompileResult": "numba.core.compiler",
    "Compiler": "numba.core.compiler",
    "Environment": "numba.core.environment",
    "JITCodeLibrary": "numba.core.codegen",
    "Type": "numba.core.types",
    "_nrt_python": "numba.core.runtime",
    "base": "numba.core",
    "cgutils": "numba.core",
    "config": "numba.core",
    "cpu_target": "numba.core.registry",
    "dumps": "numba.core.serialize",
    "errors": "numba.core",
    "global_compiler_lock": "numba.core.compiler_lock",
    "ir": "numba.core",
    "lookup_environment": "numba.core.environment",
    "lower_getattr_generic": "numba.core.imputils",
    "lowering": "numba.core",
    "normalize_signature": "numba.core.sigutils",
    "parallel": "numba.np.ufunc",
    "populate_array": "numba.np.arrayobj",
    "ssa": "numba.core",
    "typeinfer": "numba.core",
}
ATTRIBUTES = (
    "numba.core.base.BaseContext.get_abi_sizeof",
    "numba.core.base.BaseContext.get_function",
    "numba.core.base.BaseContext.refresh",
    "numba.core.base._has_loc",
    "numba.core.codegen.CPUCodegen._check_llvm_bugs",
    "numba.core.codegen.JITCPUCodegen._library_class",
    "numba.core.codegen.JITCPUCodegen.magic_tuple",
    "numba.core.codegen.JITCPUCodegen.set_env",
    "numba.core.codegen.JITCodeLibrary._ensure_finalized",
    "numba.core.codegen.JITCodeLibrary._finalize_dynamic_globals",
    "numba.core.codegen.JITCodeLibrary._finalize_final_module",
    "numba.core.codegen.JITCodeLibrary._get_compiled_object",
    "numba.core.codegen.JITCodeLibrary._get_module_for_linking",
    "numba.core.codegen.JITCodeLibrary._optimize_final_module",
    "numba.core.codegen.JITCodeLibrary._optimize_functions",
    "numba.core.codegen.JITCodeLibrary._raise_if_finalized",
    "numba.core.codegen.JITCodeLibrary._unserialize",
    "numba.core.codegen.JITCodeLibrary.add_ir_module",
    "numba.core.codegen.JITCodeLibrary.enable_object_caching",
    "numba.core.codegen.JITCodeLibrary.get_pointer_to_function",
    "numba.core.codegen.JITCodeLibrary.has_dynamic_globals",
    "numba.core.codegen.JitEngine.is_symbol_defined",
    "numba.core.compiler.Compiler._compile_bytecode",
    "numba.core.compiler.CompileResult._rebuild",
    "numba.core.compiler.CompileResult._reduce",
    "numba.core.dispatcher.Dispatcher._compile_for_args",
    "numba.core.environment.Environment._memo",
    "numba.core.environment.Environment.can_cache",
    "numba.core.errors._format_msg",
    "numba.core.ir.Expr.list_vars",
    "numba.core.ir.Inst._rec_list_vars",
    "numba.core.ir.Stmt.list_vars",
    "numba.core.lowering.new_error_context",
    "numba.core.runtime._nrt_python.c_helpers",
    "numba.core.ssa._run_ssa_block_pass",
    "numba.core.typeinfer.CallConstraint.resolve",
    "numba.core.typeinfer.ConstraintNetwork.propagate",
    "numba.core.typeinfer.new_error_context",
    "numba.core.types.functions.BaseFunction.get_call_type",
    "numba.np.ufunc.parallel._launch_threads",
)


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return named(NAMES[name], name)


def named(module: str, name: str) -> Any:
    """``from module import name``; ImportError says which version lacks it."""
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        package = "numba-cuda" if module.startswith("numba.cuda") else "numba"
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise error from None
        what = f"{package} {version} lacks {module}.{name}, a private name that numbadnn uses"
        raise ImportError(f"{what}: install a version that numbadnn's requirements admit") from error

"""Every private name of numba-cuda that the library uses, as ``numba_names`` has those of Numba. It imports what is asked for."""

from __future__ import annotations

from typing import Any

from numbadnn.host.numba_names import named

#: name -> the module that has it, or whose submodule it is
NAMES = {
    "DeviceNDArray": "numba.cuda.cudadrv.devicearray",
    "MemoryPointer": "numba.cuda.cudadrv.driver",
    "analysis": "numba.cuda.core",
    "base": "numba.cuda.core",
    "compiler": "numba.cuda",
    "config": "numba.cuda",
    "cuda_target": "numba.cuda.descriptor",
    "devices": "numba.cuda.cudadrv",
    "errors": "numba.cuda.core",
    "global_compiler_lock": "numba.cuda.core.compiler_lock",
    "inline_closurecall": "numba.cuda.core",
    "ir": "numba.cuda.core",
    "ir_utils": "numba.cuda.core",
    "lowering": "numba.cuda",
    "postproc": "numba.cuda.core",
    "ssa": "numba.cuda.core",
    "transforms": "numba.cuda.core",
    "typed_passes": "numba.cuda.core",
    "typeinfer": "numba.cuda.core",
}
#: of the simulator, which has others
SIMULATED = {
    "Dim3": "numba.cuda.simulator.kernelapi",
    "FakeCUDAModule": "numba.cuda.simulator.kernelapi",
    "normalize_kernel_dimensions": "numba.cuda.errors",
}
ATTRIBUTES = (
    "numba.cuda.core.analysis.compute_cfg_from_blocks",
    "numba.cuda.core.analysis.compute_dead_maps",
    "numba.cuda.core.analysis.compute_live_map",
    "numba.cuda.core.base.BaseContext.get_abi_sizeof",
    "numba.cuda.core.base.BaseContext.get_function",
    "numba.cuda.core.base._has_loc",
    "numba.cuda.core.errors._format_msg",
    "numba.cuda.core.inline_closurecall.InlineWorker.inline_function",
    "numba.cuda.core.inline_closurecall._add_definitions",
    "numba.cuda.core.inline_closurecall._created_inlined_var_name",
    "numba.cuda.core.inline_closurecall._get_callee_args",
    "numba.cuda.core.inline_closurecall._replace_args_with",
    "numba.cuda.core.inline_closurecall._replace_returns",
    "numba.cuda.core.ir.Expr.list_vars",
    "numba.cuda.core.ir.Stmt.list_vars",
    "numba.cuda.core.ir.assign_types",
    "numba.cuda.core.ir_utils._the_max_label",
    "numba.cuda.core.ir_utils.enforce_no_dels",
    "numba.cuda.core.ir_utils.enforce_no_phis",
    "numba.cuda.core.ir_utils.find_topo_order",
    "numba.cuda.core.ir_utils.simplify_CFG",
    "numba.cuda.core.postproc.PostProcessor._insert_var_dels",
    "numba.cuda.core.postproc.PostProcessor._patch_var_dels",
    "numba.cuda.core.postproc.VariableLifetime",
    "numba.cuda.core.ssa._CacheListVars",
    "numba.cuda.core.ssa._FixSSAVars",
    "numba.cuda.core.ssa._compute_phi_locations",
    "numba.cuda.core.ssa._find_defs_violators",
    "numba.cuda.core.ssa._fresh_vars",
    "numba.cuda.core.ssa._get_scope",
    "numba.cuda.core.ssa._iterated_domfronts",
    "numba.cuda.core.ssa._run_block_rewrite",
    "numba.cuda.core.ssa._run_ssa",
    "numba.cuda.core.ssa._run_ssa_block_pass",
    "numba.cuda.core.transforms.canonicalize_cfg",
    "numba.cuda.core.typed_passes.check_and_legalize_ir",
    "numba.cuda.core.typeinfer.CallConstraint.resolve",
    "numba.cuda.core.typeinfer.ConstraintNetwork.propagate",
    "numba.cuda.core.typeinfer.new_error_context",
    "numba.cuda.lowering.Lower._find_singly_assigned_variable",
    "numba.cuda.lowering.compute_use_defs",
    "numba.cuda.lowering.must_use_alloca",
    "numba.cuda.lowering.new_error_context",
)


def __getattr__(name: str) -> Any:
    module = NAMES.get(name) or SIMULATED.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return named(module, name)

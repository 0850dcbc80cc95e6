"""Passes of numba-cuda 0.30 with the same results, which do not walk every block for every variable (see ``compile.py``)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from numbadnn.host.cuda_names import analysis, ir, ir_utils, lowering, postproc, ssa, transforms

_post_process = postproc.PostProcessor.run
_find_singly_assigned = lowering.Lower._find_singly_assigned_variable


# ---- what is alive where


def post_process(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """``PostProcessor.run``: what is alive at the start of a block only generators ask for, deletions what rewrites lists."""
    func_ir = self.func_ir
    if func_ir.is_generator:
        _post_process(self, emit_dels, extend_lifetimes)
        return
    func_ir.blocks = transforms.canonicalize_cfg(func_ir.blocks)
    func_ir.variable_lifetime = postproc.VariableLifetime(func_ir.blocks)
    func_ir.generator_info = None
    if emit_dels and any(expr.op == "build_list" for b in func_ir.blocks.values() for expr in b.find_exprs()):
        self._insert_var_dels(extend_lifetimes=extend_lifetimes)


def live_map(cfg: Any, blocks: Any, uses: Any, defs: Any) -> dict[int, set[str]]:
    """``compute_live_map``, the variables alive at the start of each block: a set of them is the bits of an integer."""
    names: list[str] = []
    number: dict[str, int] = {}

    def bits(variables: Any) -> int:
        total = 0
        for name in variables:
            if name not in number:
                number[name] = len(names)
                names.append(name)
            total |= 1 << number[name]
        return total

    defined = {label: bits(defs[label]) for label in defs}
    live = {label: bits(uses[label]) for label in blocks}
    reach = {label: live[label] | defined[label] for label in defs}  # known at the end of the block
    changed = True
    while changed:
        changed = False
        for label in defs:
            for after, _ in cfg.successors(label):
                if reach[label] & ~reach[after]:
                    reach[after] |= reach[label]
                    changed = True
    changed = True
    while changed:
        changed = False
        for label in reversed(list(blocks)):
            for before, _ in cfg.predecessors(label):
                more = live[label] & reach[before] & ~defined[before] & ~live[before]
                if more:
                    live[before] |= more
                    changed = True
    return {label: {names[i] for i, bit in enumerate(f"{here:b}"[::-1]) if bit == "1"} for label, here in live.items()}


def legalize(func_ir: Any, flags: Any) -> None:
    """``check_and_legalize_ir``: deletes what lowering keeps in memory. A name of one block and one assignment is a value there.

    To delete a value is to do nothing where nothing is counted, as on a GPU.
    """
    ir_utils.enforce_no_phis(func_ir)
    ir_utils.enforce_no_dels(func_ir)
    post = postproc.PostProcessor(func_ir)
    if func_ir.is_generator or flags.nrt:
        post.run(True, extend_lifetimes=flags.dbg_extend_lifetimes)
        return
    post.run()
    blocks, lifetime = func_ir.blocks, func_ir.variable_lifetime
    uses = lifetime.usedefs.usemap
    kept: set[str] = set().union(*uses.values())
    seen: set[str] = set()
    for block in blocks.values():
        for name in _assigned(block):
            (kept if name in seen else seen).add(name)
        kept.update(v.name for v in block.terminator.list_vars())  # deleted by the next block, which may come before
    defs = {label: names & kept for label, names in lifetime.usedefs.defmap.items()}
    live = live_map(lifetime.cfg, blocks, uses, defs)
    dead = analysis.compute_dead_maps(lifetime.cfg, blocks, live, defs)
    post._patch_var_dels(dead.internal, dead.escaping, extend_lifetimes=flags.dbg_extend_lifetimes)


def _assigned(block: Any) -> list[str]:
    return [stmt.target.name for stmt in block.body if isinstance(stmt, ir.assign_types)]


def find_singly_assigned(self: Any) -> None:
    """``Lower._find_singly_assigned_variable``: names of one block and one assignment there."""
    if self.func_ir.func_id.is_generator:
        _find_singly_assigned(self)
        return
    blocks = self.func_ir.blocks
    maps = lowering.compute_use_defs(blocks)
    elsewhere = set().union(*maps.usemap.values()) | set(lowering.must_use_alloca(blocks))
    times: dict[str, int] = defaultdict(int)
    homes: dict[str, int] = defaultdict(int)
    for block in blocks.values():
        for name in _assigned(block):
            times[name] += 1
    for names in maps.defmap.values():
        for name in names:
            homes[name] += 1
    self._singly_assigned_vars = {n for n in homes if homes[n] == times[n] == 1 and n not in elsewhere}
    self._blk_local_varmap = {}


# ---- single assignment


def run_ssa(blocks: dict[int, Any]) -> dict[int, Any]:
    """``_run_ssa``: for each name that is assigned several times, only the blocks that name it are rewritten."""
    if not blocks:
        return {}
    cfg = analysis.compute_cfg_from_blocks(blocks)
    frontiers = ssa._iterated_domfronts(cfg)
    violators = ssa._find_defs_violators(blocks, cfg)
    named: dict[str, dict[int, None]] = {name: {} for name in violators}  # labels in the blocks' order
    for label, block in blocks.items():
        for stmt in block.body:
            for var in stmt.list_vars():
                if var.name in named:
                    named[var.name][label] = None
    fix = ssa._FixSSAVars(ssa._CacheListVars())
    scope = ssa._get_scope(blocks)
    made = {label: block.copy() for label, block in blocks.items()}
    for name, labels in named.items():
        some, defmap = ssa._fresh_vars({label: made[label] for label in labels}, name)
        phis: dict[int, list[Any]] = defaultdict(list)
        states = {"scope": scope, "varname": name, "defmap": defmap, "phimap": phis, "cfg": cfg}
        states["phi_locations"] = ssa._compute_phi_locations(frontiers, defmap)
        made.update(ssa._run_block_rewrite(some, states, fix))
        for label, nodes in phis.items():
            made[label].body = nodes + made[label].body
    return made

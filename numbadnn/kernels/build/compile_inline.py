"""Inlining of numba-cuda 0.30, each function read once and copied cheaply (see ``compile.py``).

Numba ran its frontend for each call of a function, copied what came out twice, and looked through the copy for each of
renaming, moving labels and replacing arguments. Here the frontend runs once for each function that a kernel calls, and one
walk copies it with the caller's names; what it is given and never assigns to goes by the caller's name, without a copy.
Labels and the order of blocks are Numba's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from numbadnn.host.cuda_names import inline_closurecall, ir, ir_utils

_inline_function = inline_closurecall.InlineWorker.inline_function
#: function -> what the frontend made of it, its labels in topological order, and the arguments that it never assigns to
callees: dict[Any, tuple[Any, list[int], dict[str, int]]] = {}
_STATEMENTS = {kind for kind in vars(ir).values() if isinstance(kind, type) and issubclass(kind, ir.Stmt)} | {ir.Yield}
_LEAVES = {ir.Const, ir.Global, ir.FreeVar, ir.Arg}


def inline_function(self: Any, caller: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
    """``InlineWorker.inline_function``: the call that is statement ``i`` of ``block`` becomes the function's blocks."""
    if arg_typs is not None:
        return _inline_function(self, caller, block, i, function, arg_typs)
    if function in callees:
        callee, order, constant = callees[function]
        callee.func_id = callee.func_id.derive()  # another number in its names
    else:
        callee = self.run_untyped_passes(function)
        if self.validator is not None:
            self.validator(callee)
        callee.blocks = ir_utils.simplify_CFG(callee.blocks)
        order = ir_utils.find_topo_order(callee.blocks)
        callees[function] = callee, order, constant = callee, order, _never_assigned(callee.blocks)
    call = block.body[i]
    shift = max(ir_utils._the_max_label.next(), max(caller.blocks)) + 1
    ir_utils._the_max_label.update(max(callee.blocks) + shift)
    arguments = inline_closurecall._get_callee_args(call.value, function, call.loc, caller)
    given = {name: arguments[i] for name, i in constant.items() if isinstance(arguments[i], ir.Var)}
    names = _names_in(block.scope, callee, function, given)
    blocks = {label + shift: _moved(old, block.scope, names, given, shift) for label, old in callee.blocks.items()}
    inline_closurecall._replace_args_with(blocks, arguments)

    rest = ir.Block(block.scope, block.loc)
    rest.body = block.body[i + 1 :]
    after = ir_utils.next_label()
    caller.blocks[after] = rest
    block.body = [*block.body[:i], ir.Jump(min(blocks), call.loc)]
    inline_closurecall._replace_returns(blocks, call.target, after)

    definitions = caller._definitions
    if call.target.name in definitions and call.value in definitions[call.target.name]:
        definitions[call.target.name].remove(call.value)
    new_blocks = [(after, rest)]
    for label in order:
        inline_closurecall._add_definitions(caller, blocks[label + shift])
        caller.blocks[label + shift] = blocks[label + shift]
        new_blocks.append((label + shift, blocks[label + shift]))
    return callee, blocks, names, new_blocks


def _never_assigned(blocks: Any) -> dict[str, int]:
    """The arguments that a function only reads -> their numbers."""
    assigned = [stmt for block in blocks.values() for stmt in block.body if isinstance(stmt, ir.assign_types)]
    times = Counter(stmt.target.name for stmt in assigned)
    return {s.target.name: s.value.index for s in assigned if isinstance(s.value, ir.Arg) and times[s.target.name] == 1}


def _names_in(scope: Any, callee: Any, function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The function's variables -> those of the caller: ``given``, or new ones."""
    local = callee.blocks[min(callee.blocks)].scope.localvars._con
    name_of = inline_closurecall._created_inlined_var_name
    unique, free = callee.func_id.unique_name, function.__code__.co_freevars
    new = {
        n: scope.redefine(name_of(unique, n), loc=v.loc) for n, v in local.items() if n not in free and n not in given
    }
    return new | given


def _moved(old: Any, scope: Any, names: dict[str, Any], given: dict[str, Any], shift: int) -> Any:
    """A copy of a block with other names and labels."""
    new = ir.Block(scope, old.loc)
    kept = [s for s in old.body if not (isinstance(s, ir.assign_types) and s.target.name in given)]
    new.body = [_copied(stmt, names) for stmt in kept]
    end = new.body[-1]
    if isinstance(end, ir.Jump):
        end.target += shift
    elif isinstance(end, ir.Branch):
        end.truebr += shift
        end.falsebr += shift
    return new


def _copied(value: Any, names: dict[str, Any]) -> Any:
    kind = type(value)
    if kind is ir.Var:
        return names.get(value.name, value)
    if kind is list:
        return [_copied(v, names) for v in value]
    if kind is tuple:
        return tuple([_copied(v, names) for v in value])
    if kind is ir.Expr:
        new = object.__new__(kind)
        new.__dict__.update(op=value.op, loc=value.loc, _kws={k: _copied(v, names) for k, v in value._kws.items()})
    elif kind in _STATEMENTS:
        new = object.__new__(kind)
        new.__dict__.update({k: _copied(v, names) for k, v in value.__dict__.items()})
    elif kind in _LEAVES:
        new = object.__new__(kind)
        new.__dict__.update(value.__dict__)
    else:
        return value
    return new

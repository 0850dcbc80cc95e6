"""The JSON Schema of reports as tables: a section for each kind of object, a row for each key."""

import json
from typing import Any

Schema = dict[str, Any]


def tables(text: str) -> str:
    """Markdown of a schema: the keys that all kinds of documents share, if any, and then each kind and what it is made of.

    >>> row = '"row": {"properties": {"ulp": {"type": "integer", "description": "Apart."}}}'
    >>> print(tables('{"oneOf": [{"$ref": "#/$defs/row"}], "$defs": {' + row + '}}'))
    ## every document
    <BLANKLINE>
    | key | value | meaning |
    | --- | --- | --- |
    | `ulp` | integer | Apart. |
    <BLANKLINE>
    """
    schema = json.loads(text)
    named = schema["$defs"]
    kinds = [named[of["$ref"].rpartition("/")[2]] for of in schema["oneOf"]]
    first, *others = (kind["properties"] for kind in kinds)
    shared = {key: what for key, what in first.items() if all(other.get(key) == what for other in others)}
    parts = [section("every document", {"properties": shared}, named)] if shared else []
    for name, of in named.items():
        own = {key: what for key, what in of.get("properties", {}).items() if of not in kinds or key not in shared}
        if own:
            parts.append(section(name, {**of, "properties": own}, named))
    return "\n".join(parts)


def section(name: str, of: Schema, named: Schema) -> str:
    """One kind of object, and behind it the objects within it that have no name; keys that may be missing say so."""
    needed = of.get("required", of["properties"])
    within, rows = "", []
    for key, what in of["properties"].items():
        items = what.get("items", {})
        if "properties" in items:
            within += "\n" + section(f"{name}.{key}", items, named)
            kind = f"array of [{name}.{key}](#{name}{key})"
        else:
            kind = value(what, named)
        rows.append(f"| `{key}`{'' if key in needed else ' (optional)'} | {kind} | {what.get('description', '')} |")
    said = f"{of['description']}\n\n" if "description" in of else ""
    return f"## {name}\n\n{said}| key | value | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n" + within


def value(of: Schema, named: Schema) -> str:
    """What a value may be, in words; objects of other sections are links.

    >>> value({"type": "array", "items": {"$ref": "#/$defs/row"}}, {"row": {"properties": {}}})
    'array of [row](#row)'
    >>> value({"enum": ["ok", 3, None]}, {}), value({"anyOf": [{"type": "null"}, {}]}, {})
    ('`"ok"`, `3`, `null`', 'null or any')
    """
    if "$ref" in of:
        name = of["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})" if "properties" in named[name] else value(named[name], named)
    if "enum" in of or "const" in of:
        return ", ".join(f"`{json.dumps(one)}`" for one in of.get("enum", [of.get("const")]))
    if "anyOf" in of:
        return " or ".join(value(one, named) for one in of["anyOf"])
    if of.get("type") == "array" and "items" in of:
        return f"array of {value(of['items'], named)}"
    kind = of.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else kind

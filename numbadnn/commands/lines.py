"""The names that commands take: operations, cases, problem lines, and files of such lines."""

from __future__ import annotations

from pathlib import Path

from numbadnn.call import verbose


def expanded(words: list[str]) -> list[str]:
    """Words of a problem line that was not quoted joined again; ``@FILE`` replaced by the names that stand in that file.

    >>> expanded(["softmax", "x=float32:2x3"])
    ['softmax x=float32:2x3']
    """
    if len(words) > 1 and all("=" in w and " " not in w for w in words[1:]) and not words[0].startswith("@"):
        return [" ".join(words)]
    names = [name for word in words for name in (_of_file(word[1:]) if word.startswith("@") else [word])]
    return list(dict.fromkeys(names))


def _of_file(file: str) -> list[str]:
    """The cases of a file: a name a line, or a line that ``NUMBADNN_VERBOSE`` printed, as it is; comments begin with #."""
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"@{file}: cannot read it: {getattr(error, 'strerror', None) or error}") from None
    names = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "numbadnn: ")):  # the latter for people, beside the line of exec
            continue
        if line.startswith("numbadnn exec "):
            try:
                line = verbose.parse(line)["case"]
            except (ValueError, KeyError):
                raise ValueError(f"@{file}: expected a whole line of NUMBADNN_VERBOSE=exec in line {number}") from None
        names.append(line)
    if not names:
        raise ValueError(f"@{file}: expected a case a line, got a file without any")
    return names

"""Random problems in the CUDA simulator, through all that a GPU has: its memory, its streams, the public functions."""

import pytest
from host_driver import install
from reporting import end, report

import numbadnn
from numbadnn import cases
from numbadnn.kernels.lang import access
from numbadnn.registry import FAMILY
from numbadnn.validate.fuzz import places, rounds, trials

#: what the simulator computes in a moment
QUICK = ("softmax", "pool", "norm", "dropout", "upsample")
#: two layers, whose gradients are computed by way of a reserve too
NETWORK = next(c.text for c in cases.find(["rnn_backward"], "contract") if c.name.startswith("rnn_backward/tiny/gru"))
#: a destination that new arrays would not be like; and one that is not dense
LINES = (
    "dropout x=float32:2x3x4x4:nhwc y=float32:2x3x4x4 p=0.5",
    "dropout x=float32:4x4 y=float32:4x4:16,2 p=0.5",
    NETWORK,
)


def everywhere() -> list[tuple[int, int]]:
    return [(0, 1 << 64)]


def main() -> None:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        patch.setattr(access, "MEMORY", everywhere())
        patch.setattr(places, "on_simulator", lambda *a: places.gpu(0)(*a))
        patch.setattr(rounds, "CHUNK", 1)
        for backend in ("numba", "auto"):
            done: set[str] = set()
            for number in range(300):
                problem = rounds.drawn(3, number)
                if problem is None or FAMILY[problem.op] not in QUICK or problem.op in done:
                    continue
                done.add(problem.op)
                tally = rounds.run(rounds.Task(backend, 0, 3, number, number + 1))
                right = sum(count for (_, _, kind), count in tally.verdicts.items() if kind == "right")
                report(f"{backend} {problem}", not tally.findings and right > 0, "\n".join(map(str, tally.findings)))
            for line in LINES:  # by our kernels, whatever else is installed
                with numbadnn.using(only="numba.*"):
                    verdicts = list(trials.examine(trials.Subject(cases.parse(line), 2), backend, 0))
                (found,) = (v for v in verdicts if v.kind != "refused")
                report(f"{backend} {line}", found.kind == "right", found)
            report(f"{backend} every operation of {', '.join(QUICK)}", len(done) == 12, sorted(done))
    end()


if __name__ == "__main__":
    main()

"""Alarms and their report, the meter's figures, the line with the time left, the look at the disk."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.errors import EftError
from eft.train import callbacks, checkpoints, flops, meter


class Table:
    """A training set as datasets gives it: columns, and rows by range."""

    def __init__(self, **columns: list) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: range) -> dict[str, list]:
        return {name: [values[i] for i in rows] for name, values in self.columns.items()}


def state(step: int, **more) -> SimpleNamespace:
    return SimpleNamespace(global_step=step, max_steps=100, is_world_process_zero=True, **more)


def alarms(out: Path, **options) -> callbacks.Alarms:
    rows = meter.StepRows(Table(id=[f"r{i}" for i in range(400)]), 4)
    made = callbacks.Alarms(out, rows, **options)
    made.on_train_begin(None, state(0), None)
    return made


def log(out: Path, alarm: callbacks.Alarms, step: int, loss: float, norm: float) -> None:
    """One logged step, in the order of a training's callbacks."""
    line = {"loss": loss, "grad_norm": norm, "learning_rate": 1e-5}
    journal = callbacks.Journal(out, "sft", 0)
    journal.started = 0.0
    journal.on_log(None, state(step), None, line)
    alarm.on_log(None, state(step), None, line)


def test_a_gradient_of_zero_on_the_first_steps(tmp_path: Path) -> None:
    alarm = alarms(tmp_path)
    log(tmp_path, alarm, 1, 1.0, 0.5)
    with pytest.raises(EftError, match="gradient is zero"):
        log(tmp_path, alarm, 2, 1.0, 0.0)
    late = alarms(tmp_path)
    for step, norm in enumerate((0.5, 0.4, 0.3, 0.0, 0.0), 1):
        log(tmp_path, late, step, 1.0, norm)


@pytest.mark.parametrize("loss, norm", [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_what_is_no_number_stops_with_a_report(loss: float, norm: float, tmp_path: Path) -> None:
    alarm = alarms(tmp_path)
    for step in range(1, 8):
        log(tmp_path, alarm, step, 2.0 / step, 0.5)
    with pytest.raises(EftError, match="diverged") as e:
        log(tmp_path, alarm, 9, loss, norm)  # logged every other step: the rows of two steps are suspects
    text = str(e.value)
    assert "step 7: loss 0.2857" in text and "rows: r28, r29" in text and "checkpoints before this step are kept" in text
    report = json.loads((tmp_path / callbacks.STOPPED).read_text())
    assert report["step"] == 9 and report["rows"] == [f"r{i}" for i in range(28, 36)]
    assert len(report["journal"]) == 8


def test_explosions_stop_and_spikes_pass(tmp_path: Path) -> None:
    alarm = alarms(tmp_path, explode=100.0)
    for step in range(1, 20):
        log(tmp_path, alarm, step, 1.0, 500.0 if step == 15 else 0.3)
    for step in (20, 21):
        log(tmp_path, alarm, step, 1.0, 400.0)
    with pytest.raises(EftError, match="exploded: its norm is 1333 times the usual 0.3"):
        log(tmp_path, alarm, 22, 1.0, 400.0)


def test_norms_under_the_clip_are_no_explosion(tmp_path: Path) -> None:
    alarm = alarms(tmp_path, explode=100.0, clip=1.0)
    for step in range(1, 40):  # a trained KTO model whose norms have nearly vanished
        log(tmp_path, alarm, step, 0.4, 1e-5 if step < 30 else 0.9)
    off = alarms(tmp_path, explode=None)
    for step in range(1, 40):
        log(tmp_path, off, step, 0.4, 0.1 if step < 30 else 1e6)


def test_a_step_that_is_saved_is_logged_first(tmp_path: Path) -> None:
    control = SimpleNamespace(should_save=True, should_log=False)
    alarms(tmp_path).on_step_end(None, state(5), control)
    assert control.should_log


# ---------------------------------------------------------------------------------------------------------------- meter


def test_the_meter_counts_what_a_step_holds() -> None:
    table = Table(length=[10, 30, 20, 40], response=[2, 4, 2, 8], label=[True, False, True, True])
    cost = flops.Count(0, weights=100, head=1000, attention=((8, None),), state=0)
    tokens, flops_ = meter.per_step(meter.StepRows(table, 2), meter.Work(cost))
    assert tokens.tolist() == [40, 60]
    assert flops_.tolist() == [3 * cost.forward([10, 30], 6), 3 * cost.forward([20, 40], 10)]
    both = meter.per_step(meter.StepRows(table, 2), meter.Work(cost, mismatched=True))[1] - flops_
    # behind the same prompt: every token of the completion, which sees all before it
    assert both[0] == 2 * 1100 * 6 + 4 * 8 * (9 + 10 + 27 + 28 + 29 + 30)
    packed = Table(length=[40, 60], response=[6, 10], lengths=[[10, 30], [20, 40]], id=[["a", "b"], ["c", "d"]])
    assert meter.per_step(meter.StepRows(packed, 1), meter.Work(cost))[1].tolist() == flops_.tolist(), "packs are rows"
    assert meter.StepRows(packed, 1).ids(2, 2) == ["c", "d"]

    made = meter.Meter(meter.StepRows(table, 2), work=meter.Work(cost), peak=1e6, ranks=2)
    made.on_train_begin(None, state(0), None)
    made.busy = 4.0
    line = {"loss": 1.0}
    made.on_log(None, state(2), None, line)
    assert line["tokens_per_second"] == 25 and line["step_seconds"] == 2.0 and line["desirable_share"] == 0.75
    assert line["mfu"] == pytest.approx(sum(flops_) / (4.0 * 2 * 1e6), abs=1e-4) and line["memory_gb"] > 0
    made.on_log(None, state(2), None, other := {"eval_loss": 1.0})
    assert other == {"eval_loss": 1.0}


@settings(deadline=None)
@given(st.floats(0, 1e6))
def test_times_and_bars_are_readable(seconds: float) -> None:
    assert len(callbacks.bar(seconds)) == callbacks.BAR + 2
    assert callbacks.clock(seconds).split()[1] in ("s", "min", "h")


def test_figures_of_the_progress_line() -> None:
    assert callbacks.clock(44.4) == "44 s" and callbacks.clock(3600) == "60 min" and callbacks.clock(11100) == "3 h 05 min"
    assert callbacks.amount(987) == "987" and callbacks.amount(18_234) == "18.2k" and callbacks.amount(1.2e6) == "1.2M"
    assert callbacks.bar(0.25).count("#") == 5


# ----------------------------------------------------------------------------------------------------------------- disk


def save(out: Path, step: int, size: int) -> None:
    """A checkpoint of `size` bytes, if there is room for it."""
    folder = out / f"checkpoint-{step}"
    checkpoints.Space(out, size).on_step_end(None, state(step), SimpleNamespace(should_save=True))
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x" * size)
    checkpoints.Checkpoints(out, {}, 3, lambda: None).on_save(None, state(step), None)


def fill(out: Path) -> None:
    """Checkpoints of 1 MB on a file system of 4 MB: three fit, for a fourth the oldest goes first, and where even that
    does not help the training stops before anything is torn."""
    names = lambda: [f.name for f in checkpoints.checkpoints(out) if checkpoints.complete(f)]  # noqa: E731
    for step in (1, 2, 3):
        save(out, step, 1 << 20)
    assert names() == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    save(out, 4, 1 << 20)
    assert "checkpoint-4" in names() and "checkpoint-1" not in names()
    checkpoints.remove(checkpoints.checkpoints(out)[:-1])
    (out / "another user's").write_bytes(b"x" * (checkpoints.free(out) - (1 << 19)))
    with pytest.raises(EftError, match="no room for a checkpoint") as e:
        save(out, 5, 1 << 20)
    assert "continues from checkpoint-4" in str(e.value) and names() == ["checkpoint-4"], "the newest stays"


def test_a_small_disk(tmp_path: Path) -> None:
    """In a child with a file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    user, group = os.getuid(), os.getgid()
    if (child := os.fork()) == 0:
        code = 2
        try:
            libc = ctypes.CDLL(None)
            if libc.unshare(0x10000000 | 0x00020000) == 0:  # CLONE_NEWUSER, CLONE_NEWNS
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"0 {user} 1")
                Path("/proc/self/gid_map").write_text(f"0 {group} 1")
                if libc.mount(b"tmpfs", str(disk).encode(), b"tmpfs", 0, b"size=4m") == 0:
                    code = 1
                    fill(disk)
                    code = 0
        except BaseException as e:  # noqa: B036 (told to the parent)
            (tmp_path / "error").write_text(repr(e))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 2:
        pytest.skip("this machine allows no file systems of one's own")
    assert code == 0, (tmp_path / "error").read_text()


def test_the_first_checkpoint_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = checkpoints.needed(1000, 1000, 4, deepspeed=False)
    assert size == 1000 * 4 + 1000 * 8
    assert checkpoints.needed(1000, 1000, 2, deepspeed=True) == 2 * 2000 + 12 * 1000
    assert checkpoints.needed(1000, 10, 2, deepspeed=False) == 10 * 2 + 10 * 12, "adapters alone"
    monkeypatch.setattr(checkpoints, "free", lambda folder: size)
    with pytest.raises(EftError, match="no room") as e:
        checkpoints.Space(tmp_path, size).on_step_end(None, state(3), SimpleNamespace(should_save=True))
    assert "it starts anew" in str(e.value)
    checkpoints.Space(tmp_path, size).on_step_end(None, state(3), SimpleNamespace(should_save=False))

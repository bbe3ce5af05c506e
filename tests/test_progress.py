"""Progress: what is shown in a terminal, in a notebook and in a log, and that showing it cannot end a run."""

import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import pytest

from chainmesh._errors import OptionError
from chainmesh.sampler import _progress
from chainmesh.sampler._progress import Snapshot, make_progress
from chainmesh.sampler._snapshot import as_html, format_duration, format_rate, format_step_size, line


def snapshot(done=500, phase="sampling", total=1000, **changes) -> Snapshot:
    values = dict(
        phase=phase,
        chains=8,
        devices=4,
        done=done,
        total=total,
        elapsed=2.0,
        rate=12_345.6,
        eta=3.0,
        divergences=0,
        step_size=(0.31, 0.4521),
    )
    return Snapshot(**{**values, **changes})


def whole_run(progress, blocks=10, seconds=0.0, clock=None):
    for phase, total in (("warm-up", 500), ("sampling", 1000)):
        for i in range(blocks + 1):
            if clock is not None:
                clock.now += seconds
            progress.update(snapshot(total * i // blocks, phase, total))


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(_progress, "_now", lambda: clock.now)
    return clock


@pytest.fixture
def notebook(monkeypatch):
    """A shell with a kernel, and a record of what it was asked to display: (display_id, update, bundle)."""
    import IPython
    import IPython.display

    shown = []

    class Handle:
        def update(self, bundle, raw):
            assert raw
            shown.append(("one", True, bundle))

    def display(bundle, raw, display_id):
        assert raw and display_id is True
        shown.append(("one", False, bundle))
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", display)
    return shown


@pytest.mark.parametrize("wrong", [None, "yes", 1, 0, 2.5, [], Snapshot, {"bar": True}])
def test_an_unknown_option_is_refused_with_the_choices(wrong):
    with pytest.raises(OptionError, match="True, False or a function"):
        make_progress(wrong)


def test_false_says_nothing(capfd):
    with make_progress(False) as progress:
        whole_run(progress)
        progress.close("done")
    assert capfd.readouterr() == ("", "")


def test_without_standard_error_there_is_silence(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with make_progress(True) as progress:
        whole_run(progress)


def test_a_function_gets_every_snapshot(clock, capfd):
    seen = []
    with make_progress(seen.append) as progress:
        whole_run(progress)
    assert [s.done for s in seen if s.phase == "sampling"] == list(range(0, 1001, 100))
    assert len(seen) == 22 and capfd.readouterr().err == ""


def test_a_failing_function_warns_once_and_is_still_called():
    calls = []

    def fails(s):
        calls.append(s.done)
        raise ZeroDivisionError("by me")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with make_progress(fails) as progress:
            whole_run(progress)
    assert len(calls) == 22
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert "ZeroDivisionError: by me" in str(warning.message) and "goes on" in str(warning.message)


def test_ctrl_c_inside_the_function_is_not_swallowed():
    def interrupts(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), make_progress(interrupts) as progress:
        progress.update(snapshot())


def test_a_short_run_writes_three_lines_on_standard_error(clock, capsys):
    with make_progress(True) as progress:
        whole_run(progress)
    out, err = capsys.readouterr()
    facts = "12,346 draws/s, after 2.0 s, 0 divergences, step size 0.31 to 0.452"
    assert out == ""
    assert err.splitlines() == [
        "chainmesh: warm-up, 8 chains on 4 devices, 500 draws each",
        f"chainmesh: warm-up 500 of 500, {facts}",
        f"chainmesh: sampling 1,000 of 1,000, {facts}",
    ]


def test_a_long_run_writes_one_line_in_ten_seconds(clock, capsys):
    """200 blocks of half a second in each phase: 100 s, so 10 lines each and the three of any run."""
    with make_progress(True) as progress:
        whole_run(progress, blocks=200, seconds=0.5, clock=clock)
    lines = capsys.readouterr().err.splitlines()
    assert 18 <= len(lines) <= 23
    assert len(set(lines)) == len(lines)


def test_a_run_without_warm_up_and_blocks_that_report_only_when_done(clock, capsys):
    with make_progress(True) as progress:
        progress.update(snapshot(1000))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_end_of_a_phase_is_said_once(clock, capsys):
    with make_progress(True) as progress:
        for _ in range(3):
            progress.update(snapshot(1000))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_early_end_says_how_far_the_run_came_and_why(clock, capsys):
    with pytest.raises(KeyboardInterrupt), make_progress(True) as progress:
        progress.update(snapshot(0))
        progress.update(snapshot(400))
        raise KeyboardInterrupt
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("chainmesh: sampling 400 of 1,000") and last.endswith(": interrupted")


def test_an_error_in_the_run_passes_through_and_closing_twice_writes_once(clock, capsys):
    progress = make_progress(True)
    with pytest.raises(LookupError, match="mine"), progress:
        progress.update(snapshot(400))
        raise LookupError("mine")
    before = capsys.readouterr().err
    assert before.endswith("ended by LookupError\n")
    progress.close("again")
    progress.update(snapshot(600))
    assert capsys.readouterr().err == ""


def test_a_broken_log_warns_once_and_the_run_goes_on(monkeypatch):
    class Broken:
        def write(self, text):
            raise BrokenPipeError("gone")

        def flush(self): ...

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stderr", Broken())
    with pytest.warns(RuntimeWarning, match="BrokenPipeError") as caught, make_progress(True) as progress:
        whole_run(progress)
    assert len(caught) == 1


def in_terminal(code: str, printed="", **changes: str) -> str:
    """What a person would see on standard error, a terminal, with standard output elsewhere."""
    parent, child = pty.openpty()
    head = """
        import sys
        from chainmesh.sampler._progress import Snapshot, make_progress
        def at(phase, done, total, **kw):
            values = dict(elapsed=2.0, rate=1000.0, eta=3.0, divergences=0, step_size=(0.3, 0.5)) | kw
            return Snapshot(phase, 8, 4, done, total, **values)
    """
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **changes}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=child,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(child)
    chunks = []
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # Linux says "input/output error" when the other end has closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(parent)
    out, _ = process.communicate()
    screen = b"".join(chunks).decode()
    assert process.returncode == 0, screen
    assert out.decode() == printed, "standard output is the user's alone"
    return screen


def test_a_terminal_shows_a_bar_per_phase_and_the_facts():
    screen = in_terminal(
        """
        with make_progress(True) as progress:
            for phase, total in (("warm-up", 500), ("sampling", 1000)):
                for i in range(11):
                    progress.update(at(phase, total * i // 10, total, divergences=2 * (phase == "sampling")))
            print("to the pipe")
            progress.close("No problem was found.")
        """,
        printed="to the pipe\n",
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    final = text[text.rindex("warm-up ") :]
    assert "500 of 500" in final and "1,000 of 1,000" in final
    for words in ("8 chains on 4 devices", "1,000 draws/s", "after 2.0 s", "2 divergences", "0.3 to 0.5"):
        assert words in " ".join(final.split()), words
    assert final.rstrip().endswith("No problem was found.")
    assert "3.0 s left" in " ".join(text.split())
    assert "\x1b[1;31m2 divergences" in screen, "divergences are not red"
    assert screen.count("\x1b[?25l") == 1 and screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l"), (
        "cursor"
    )


def test_an_error_in_the_run_gives_the_terminal_back_for_the_next():
    screen = in_terminal(
        """
        for _ in range(2):
            try:
                with make_progress(True) as progress:
                    assert type(progress).__name__ == "_Terminal"
                    progress.update(at("sampling", 400, 1000))
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
        forgotten = make_progress(True)
        forgotten.update(at("sampling", 1, 1000))
        del forgotten
        import gc; gc.collect()
        assert type(make_progress(True)).__name__ == "_Terminal", "a forgotten run keeps the terminal"
        """
    )
    assert screen.count("interrupted") == 2


def test_a_second_run_in_another_thread_writes_plain_lines():
    screen = in_terminal(
        """
        import threading
        first = make_progress(True)
        first.update(at("sampling", 400, 1000))
        def second():
            with make_progress(True) as progress:
                progress.update(at("sampling", 1000, 1000))
        thread = threading.Thread(target=second); thread.start(); thread.join()
        first.close()
        assert type(make_progress(True)).__name__ == "_Terminal"
        """
    )
    assert "chainmesh: sampling 1,000 of 1,000" in " ".join(screen.split())


def test_a_dumb_terminal_gets_plain_lines():
    screen = in_terminal(
        """
        with make_progress(True) as progress:
            progress.update(at("sampling", 1000, 1000))
        """,
        TERM="dumb",
    )
    assert screen.startswith("chainmesh: sampling 1,000 of 1,000") and "\x1b" not in screen


def test_a_notebook_gets_one_element_updated_in_place(notebook, clock, capfd):
    with make_progress(True) as progress:
        whole_run(progress, seconds=0.5, clock=clock)
        progress.close("Two chains are far away: 3 & 4 <b>")
    assert [update for _, update, _ in notebook] == [False] + [True] * (len(notebook) - 1)
    last = notebook[-1][2]
    assert "500 of 500" in last["text/html"] and "1,000 of 1,000" in last["text/html"]
    assert "3 &amp; 4 &lt;b&gt;" in last["text/html"]
    assert last["text/plain"].startswith("chainmesh: sampling 1,000 of 1,000")
    assert capfd.readouterr() == ("", "")


def test_a_notebook_is_not_flooded(notebook, clock):
    """1000 blocks in one second: an update each quarter second, and the phases' ends."""
    with make_progress(True) as progress:
        whole_run(progress, blocks=500, seconds=0.001, clock=clock)
    assert 4 <= len(notebook) <= 10
    assert "1,000 of 1,000" in notebook[-1][2]["text/html"]


def test_a_saved_notebook_keeps_the_last_state(tmp_path):
    """Through a real kernel: one output in the cell, the final one."""
    import nbformat

    imports = "from chainmesh.sampler._progress import Snapshot, make_progress"
    code = """
        with make_progress(True) as progress:
            for done in (0, 500, 1000):
                progress.update(Snapshot("sampling", 8, 4, done, 1000, 2.0, 1000.0, 1.0, 0, None))
            progress.close("No problem was found.")
    """
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in (imports, textwrap.dedent(code))]
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    run = """
        import nbformat, nbclient
        notebook = nbformat.read("in.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        nbformat.write(notebook, "out.ipynb")
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(run)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1", "IPYTHONDIR": str(tmp_path / "ipython")},
    )
    assert done.returncode == 0, done.stderr
    _, cell = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert len(cell.outputs) == 1, cell.outputs
    (output,) = cell.outputs
    assert output.output_type == "display_data"
    assert (
        "1,000 of 1,000" in output.data["text/html"] and "No problem was found." in output.data["text/html"]
    )
    assert len(output.data["text/html"]) < 2000


def test_html_stands_alone_and_marks_divergences_of_sampling_only():
    bad = as_html([snapshot(divergences=1)], "")
    assert "1 divergence<" in bad and "color:#d9534f" in bad
    assert "color:#d9534f" not in as_html([snapshot(phase="warm-up", divergences=5)], "")
    assert "width:50.0%" in bad and 'aria-valuenow="500"' in bad
    for outside in ("<script", "<style", "http", "class="):
        assert outside not in bad


def test_runs_in_many_threads_each_write_whole_lines(clock, capsys):
    def one():
        with make_progress(True) as progress:
            whole_run(progress)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 24 and all(text.startswith("chainmesh: ") for text in lines)


def test_nothing_is_said_about_what_is_unknown():
    text = line(snapshot(eta=None, rate=float("nan"), step_size=None, divergences=1))
    assert text == "sampling 500 of 1,000, 1 divergence"
    assert as_html([snapshot(0, total=0)], "").count("width:100.0%") == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (3.14, "3.1 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (192, "3 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86399, "1 d 00 h"),
        (3.2e5, "3 d 17 h"),
        (None, "?"),
        (float("inf"), "?"),
        (-1.0, "?"),
    ],
)
def test_durations(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (12345.6, "12,346 draws/s"),
        (99.96, "100 draws/s"),
        (8.24, "8.2 draws/s"),
        (0.05, "3.0 draws/min"),
        (0.0, ""),
        (float("inf"), ""),
    ],
)
def test_rates(rate, words):
    assert format_rate(rate) == words


def test_step_sizes():
    assert format_step_size((0.5, 0.5001)) == "step size 0.5"
    assert format_step_size((0.0012345, 2.0)) == "step size 0.00123 to 2"

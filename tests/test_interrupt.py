"""Ctrl-C (bug B45): a run ends at the next block end with what is finished; the session stays usable at once.

Each in a process of its own, whose main thread gets the signal.
"""

import json
import textwrap

from runs import fresh

HEAD = """
    import json, os, signal, threading, time, warnings
    import jax, jax.numpy as jnp, numpy as np
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    RWM = cm.from_blackjax("random_walk", step_size=0.5)
    TARGET = cm.LogDensity(lambda x: -(x ** 2).sum(), initial=jnp.zeros(500))
    def go(draws, **options):
        usual = {"seed": 0, "chains": 3, "tune": 0, "kernel": RWM, "progress": False}
        return cm.sample(TARGET, draws=draws, **(usual | options))
    def threads():
        return sorted(t.name for t in threading.enumerate())
    def press():
        os.kill(os.getpid(), signal.SIGINT)
    say = lambda **facts: print(json.dumps(facts))
    first, handler, others = go(300), signal.getsignal(signal.SIGINT), threads()
    started = {}
"""


def facts(source, **options):
    out = fresh(textwrap.dedent(HEAD) + textwrap.dedent(source), 2, **options)
    return json.loads(out.splitlines()[-1])


def test_ctrl_c_while_sampling_keeps_the_finished_blocks():
    """Blocks of this run take about half a second; the whole would take minutes."""
    found = facts(
        """
        threading.Timer(4.0, press).start()
        begun = time.time()
        run = go(2_000_000, thin=1000)
        ended = time.time()
        rest = [t for t in threads() if t not in others and not t.startswith("Thread-")]
        again = go(300)
        x = run.posterior["x"]
        text = str(run.report())
        run.to_arviz(), run.summary()
        say(status=run.status, quick=ended - begun < 30, again=time.time() - ended < 30, rest=rest,
            restored=signal.getsignal(signal.SIGINT) is handler, shape=x.shape, kept=run.draws // 1000,
            stats=[v.shape for v in run.stats.values()], finite=bool(np.isfinite(x).all()), said="interrupted" in text,
            state=bool(np.allclose(np.asarray(run.state.position)[:3], x[:, -1])),
            same=bool((again.posterior["x"] == first.posterior["x"]).all()))
        """
    )
    assert found["status"] == "interrupted" and found["quick"] and found["again"] and found["same"], found
    assert found["rest"] == [] and found["restored"] and found["finite"] and found["said"]
    chains, kept, dim = found["shape"]
    assert (chains, dim) == (3, 500) and 0 < kept == found["kept"] < 2000
    assert all(shape == [3, kept] for shape in found["stats"])
    assert found["state"], "the state stands at the last kept draw: what ran beyond it is dropped"


def test_ctrl_c_during_warm_up_raises():
    found = facts(
        """
        def at(phase):
            def progress(snapshot):
                if snapshot.phase == phase and not started.get(phase):
                    started[phase] = time.time()
                    press()
            return progress
        said = {}
        for name, options in (("tuned", {"kernel": "hmc", "tune": 100_000}), ("burn-in", {"tune": 1_000_000})):
            started.clear()
            try:
                go(10, progress=at("warm-up"), **options)
            except KeyboardInterrupt as error:
                said[name] = [str(error), time.time() - started["warm-up"] < 10]
        say(said=said, restored=signal.getsignal(signal.SIGINT) is handler, again=go(10).status,
            rest=[t for t in threads() if t not in others])
        """
    )
    for name in ("tuned", "burn-in"):
        text, quick = found["said"][name]
        assert "no draws yet" in text and quick, found
    assert found["restored"] and found["again"] == "complete" and found["rest"] == []


def test_a_second_ctrl_c_and_errors_of_a_progress_function():
    found = facts(
        """
        def twice(snapshot):
            press()
            press()
            time.sleep(0.1)
        second = "returned"
        try:
            go(2_000_000, thin=1000, progress=twice)
        except KeyboardInterrupt:
            second = "raised"
        after = signal.getsignal(signal.SIGINT) is handler
        def fails(snapshot):
            raise RuntimeError("my own mistake")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = go(300, progress=fails)
        last = lambda snapshot: press() if snapshot.phase == "sampling" and snapshot.done == snapshot.total else None
        done = go(300, progress=last)
        def own(number, frame):
            started["own"] = True
        signal.signal(signal.SIGINT, own)
        def once(snapshot):
            if not started.get("pressed"):
                started["pressed"] = True
                press()
        kept = go(2_000_000, thin=1000, progress=once)
        warned = len([w for w in caught if "my own mistake" in str(w.message)])
        say(second=second, after=after, fails=run.status, warned=warned, last=done.status, kept=kept.status,
            own=signal.getsignal(signal.SIGINT) is own)
        """
    )
    assert found["second"] == "raised" and found["after"]
    assert found["fails"] == "complete" and found["warned"] == 1
    assert found["last"] == "complete"  # pressed when all was done: nothing is missing
    assert found["kept"] == "interrupted" and found["own"]  # a handler of the user's own is put back too

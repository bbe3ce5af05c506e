"""The picture of a sharding: what it says in text, HTML and matplotlib, for every rank and placement."""

from __future__ import annotations

import sys
import types
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from chainmesh._errors import InputError
from chainmesh.sharding._picture import PALETTE, Part
from chainmesh.sharding._show import ShardingPicture, show_sharding

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], order: list[int] | None = None) -> Mesh:
    devices = np.array(jax.devices())
    if order is not None:
        devices = devices[order]
    return Mesh(devices[: int(np.prod(shape))].reshape(shape), names)


def put(shape: tuple[int, ...], mesh: Mesh, *spec, dtype=np.float32) -> jax.Array:
    return jax.device_put(np.zeros(shape, dtype), NamedSharding(mesh, P(*spec)))


def show(obj, capsys, **options) -> ShardingPicture:
    picture = show_sharding(obj, **options)
    capsys.readouterr()
    return picture


def all_patches(ax) -> list:
    return [patch for axes in (ax, *ax.child_axes) for patch in axes.patches]


def written(ax) -> str:
    return " ".join(text.get_text() for axes in (ax, *ax.child_axes) for text in axes.texts)


class Balance(HTMLParser):
    """Collects the text and checks that every tag is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.words, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read_html(html: str) -> Balance:
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    return parser


class FakeRun:
    """What a Run offers to the drawing."""

    def __init__(self, mesh: Mesh, chains: int):
        self.chains, slots = chains, 8
        self.parts = [
            Part(
                "draws", {"theta": put((slots, 10, 3), mesh, "chain")}, ("chain", "draw", "school"), "draws"
            ),
            Part("state", {"position": put((slots, 5), mesh, "chain")}, ("chain",), "state"),
            Part("data", {"y": put((12,), mesh)}, ("row",), "data"),
        ]

    def sharding_parts(self) -> list[Part]:
        return self.parts


# ---- any array ----


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((), ()),
        ((8,), ("chain",)),
        ((8, 3), ("chain",)),
        ((3, 8), (None, "chain")),
        ((8, 4, 3), ("chain",)),
        ((2, 8, 3, 5), (None, "chain")),
        ((8, 4), ()),
        ((0, 8), (None, "chain")),
    ],
)
def test_every_rank_in_every_form(shape, spec, capsys):
    picture = show(put(shape, mesh_of((8,), ("chain",)), *spec), capsys)
    text, words = picture.text(), " ".join(read_html(picture.html()).words)
    for device in jax.devices():
        assert f"cpu:{device.id}" in text
        assert f"cpu:{device.id}" in words
    assert str(shape) in text
    assert f"float32 {shape}" in words
    for d in range(len(shape)):
        assert f"dim {d}: " in text
    ax = picture.plot()
    labels = [entry.get_text() for entry in ax.figure.legends[0].get_texts()]
    assert labels == [f"cpu:{device.id}" for device in jax.devices()]
    assert len(all_patches(ax)) == 8
    ax.figure.canvas.draw()


def test_a_split_array_says_who_holds_what(capsys):
    picture = show(
        put((8, 1000, 8), mesh_of((4,), ("chain",)), "chain"), capsys, dims=("chain", "draw", "school")
    )
    lines = picture.text().splitlines()
    assert "  dim 0: chain, split 4 ways over mesh axis 'chain', 2 of 8 per shard" in lines
    assert "  dim 1: draw, not split, size 1000" in lines
    row = next(line for line in lines if "cpu:2" in line)
    assert row.split() == "cpu:2 0 chains 4-5 [4:6, :, :] (2, 1000, 8) 62.5 KiB".split()


def test_replicated_array_is_not_called_split(capsys):
    text = show(put((6, 2), mesh_of((4,), ("chain",))), capsys).text()
    assert "replicated, a full copy on each of 4 devices" in text
    assert "split into" not in text
    assert text.count("48 B") >= 2  # the bytes of the array are the bytes of each copy


def test_two_split_dimensions_make_a_grid(capsys):
    mesh = mesh_of((2, 2), ("chain", "data"))
    picture = show(put((4, 10), mesh, "chain", "data"), capsys, dims=("chain", "row"))
    text = picture.text()
    assert "dim 1: row, split 2 ways over mesh axis 'data'" in text
    assert "[2:4, 5:10]" in next(line for line in text.splitlines() if "cpu:3" in line)
    html = picture.html()
    assert html.count("<tr") == 3 and html.count("<td") == 4
    words = read_html(html).words
    assert "chain 2:4" in words and "row 5:10" in words
    xs = sorted({round(patch.get_x(), 6) for patch in picture.plot().patches})
    assert xs == [0.0, 0.5]


def test_split_on_one_axis_of_two_shows_the_copies(capsys):
    mesh = mesh_of((2, 2), ("chain", "data"))
    text = show(put((4, 10), mesh, None, "data"), capsys, dims=("chain", "row")).text()
    assert "split into 2 shards, each copied to 2 devices" in text
    assert any("cpu:0, cpu:2" in line and "chains 0-3" in line for line in text.splitlines())


def test_shards_are_listed_in_array_order(capsys):
    mesh = mesh_of((2, 2), ("chain", "data"))
    text = show(put((4, 10), mesh, "data", "chain"), capsys).text()
    rows = [line for line in text.splitlines() if line.strip().startswith("cpu:")]
    assert [row.split()[0] for row in rows] == ["cpu:0", "cpu:2", "cpu:1", "cpu:3"]
    assert "[0:2, 5:10]" in rows[1]


def test_one_dimension_over_both_axes(capsys):
    mesh = mesh_of((2, 2), ("chain", "data"))
    text = show(put((8,), mesh, ("chain", "data")), capsys).text()
    assert "dim 0: chain, split 4 ways over mesh axes 'chain' and 'data'" in text


def test_device_order_of_the_mesh_is_respected(capsys):
    mesh = mesh_of((4,), ("chain",), order=[6, 1, 7, 2])
    picture = show(put((8,), mesh, "chain"), capsys)
    rows = [line.split()[0] for line in picture.text().splitlines() if line.strip().startswith("cpu:")]
    assert rows == ["cpu:6", "cpu:1", "cpu:7", "cpu:2"]


def test_explicit_axes_and_single_devices(capsys):
    devices = np.array(jax.devices()[:4])
    explicit = Mesh(devices, ("chain",), axis_types=(AxisType.Explicit,))
    assert "split 4 ways over mesh axis 'chain'" in show(put((8,), explicit, "chain"), capsys).text()
    alone = jax.device_put(np.zeros((4, 2)), SingleDeviceSharding(jax.devices()[5]))
    text = show(alone, capsys).text()
    assert "whole, on one device" in text and "cpu:5" in text


def test_a_sharding_without_mesh_names(capsys):
    """Pieces come from `devices_indices_map` alone, so a sharding that knows no mesh is drawn too."""
    known = put((8, 2), mesh_of((4,), ("chain",)), "chain")

    class Nameless:
        memory_kind, device_set = known.sharding.memory_kind, known.sharding.device_set

        def devices_indices_map(self, shape):
            return known.sharding.devices_indices_map(shape)

    array = types.SimpleNamespace(shape=(8, 2), dtype=known.dtype, sharding=Nameless())
    text = show([array], capsys).text()
    assert "dim 0: split 4 ways, 2 of 8 per shard" in text
    assert "over mesh" not in text


def test_devices_of_other_processes_are_shown(capsys):
    """The map of a sharding covers all processes; nothing needs to be addressable."""

    class Device:
        platform, device_kind = "gpu", "Fake GPU"

        def __init__(self, number: int):
            self.id, self.process_index, self.client = number, number // 2, self

        def devices(self):
            return devices

        def default_memory(self):
            return types.SimpleNamespace(kind="device")

    devices = [Device(number) for number in range(4)]

    class Far:
        memory_kind, device_set = "pinned_host", set(devices)

        def devices_indices_map(self, shape):
            return {device: (slice(i, i + 1),) for i, device in enumerate(devices)}

    array = types.SimpleNamespace(shape=(4,), dtype=np.dtype("float32"), sharding=Far())
    picture = show([array], capsys)
    assert "4 devices (Fake GPU) in 2 processes" in picture.text()
    assert "in pinned_host memory" in picture.text()
    assert next(line for line in picture.text().splitlines() if "gpu:2" in line).split()[:2] == ["gpu:2", "1"]
    assert "gpu:3 · process 1" in picture.html()
    assert [t.get_text() for t in picture.plot().figure.legends[0].get_texts()][3] == "gpu:3, process 1"


def test_typed_keys(capsys):
    keys = jax.device_put(
        jax.random.split(jax.random.key(0), 8), NamedSharding(mesh_of((4,), ("chain",)), P("chain"))
    )
    text = show(keys, capsys).text()
    assert "key<fry> (8,), 64 B" in text
    assert "chains 6-7" in text


def test_numpy_and_python_values_lie_on_the_host(capsys):
    text = show({"a": np.zeros((5, 2)), "n": 3, "s": "words"}, capsys, dims={"a": ("chain",)}).text()
    assert text.count("on the host, not on a device") == 2
    assert "Python int" in text and "Python str" in text
    assert "chains 0-4" in text
    assert "cpu:" not in text


def test_deleted_arrays_can_still_be_shown(capsys):
    array = put((8,), mesh_of((4,), ("chain",)), "chain")
    array.delete()
    assert "deleted" in show(array, capsys).text()


def test_sharded_shapes_without_values(capsys):
    struct = jax.ShapeDtypeStruct(
        (8,), jnp.float32, sharding=NamedSharding(mesh_of((4,), ("chain",)), P("chain"))
    )
    assert "chains 6-7" in show(struct, capsys).text()


# ---- trees, parts, runs ----


def test_arrays_that_lie_alike_share_one_grid(capsys):
    mesh = mesh_of((4,), ("chain",))
    tree = {f"site{i:02d}": put((8, *([2] * (i % 3))), mesh, "chain") for i in range(40)}
    tree["shared"] = put((3,), mesh)
    picture = show(tree, capsys)
    text = picture.text()
    assert len(picture.groups) == 2
    assert sum(line.strip().startswith("cpu:3") for line in text.splitlines()) == 1
    assert all(f"site{i:02d}" in text for i in range(40))
    assert picture.html().count("chain 6:8") == 1
    assert len(picture.plot().figure.axes) == 2


def test_bytes_of_a_group_are_summed_and_copies_counted(capsys):
    mesh = mesh_of((4,), ("chain",))
    text = show(
        {"a": put((8,), mesh, "chain"), "b": put((8, 3), mesh, "chain"), "c": put((5,), mesh)}, capsys
    ).text()
    assert "3 arrays, 148 B (208 B with every copy)" in text
    assert "52 B on each" in text
    assert next(line for line in text.splitlines() if "cpu:1 " in line and "chains" in line).endswith("32 B")


def test_a_run_shows_its_parts_and_padding(capsys):
    picture = show(FakeRun(mesh_of((4,), ("chain",)), chains=5), capsys)
    text = picture.text(width=160)
    for name in ("draws.theta", "state.position", "data.y", "chain, draw, school"):
        assert name in text
    assert "5 chains and 3 padding chains" in text
    assert "chain 4, padding 5" in text and "padding 6-7" in text
    figure = picture.plot().figure
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.split(":")[0] for title in titles] == ["draws.theta", "state.position", "data.y"]
    assert show(FakeRun(mesh_of((4,), ("chain",)), chains=5), capsys, chains=8).text().count("padding") == 0


def test_parts_without_a_run(capsys):
    mesh = mesh_of((4,), ("chain",))
    part = Part("warm-up", put((8, 2), mesh, "chain"), ("chain", "parameter"), "state")
    assert "dim 1: parameter" in show(part, capsys).text()
    assert "2 arrays" in show([part, Part("y", put((8, 2), mesh, "chain"))], capsys).text()
    with pytest.raises(InputError, match="warm-up"):
        show_sharding(Part("warm-up", put((8,), mesh, "chain"), ("chain", "parameter")))


def test_data_split_over_the_chain_axis_is_not_called_chains(capsys):
    array = put((8, 2), mesh_of((4,), ("chain",)), "chain")
    assert "chains" not in show(Part("data", array, (), "data"), capsys, chains=5).text()
    assert "chains" not in show(array, capsys, dims=("row",), chains=5).text()


# ---- padding ----


def test_padding_is_marked_everywhere(capsys):
    picture = show(put((8, 2), mesh_of((4,), ("chain",)), "chain"), capsys, chains=5)
    assert "chain 4, padding 5" in picture.text()
    assert "repeating-linear-gradient" in picture.html()
    words = read_html(picture.html()).words
    assert "padding 5" in words and "padding 6-7" in words
    ax = picture.plot()
    hatched = [patch for patch in ax.patches if patch.get_hatch()]
    assert sorted((patch.get_y(), patch.get_height()) for patch in hatched) == [(5.0, 1.0), (6.0, 2.0)]
    assert "padding 6-7" in written(ax) and "chain 4" in written(ax)


def test_no_padding_no_hatch(capsys):
    picture = show(put((8, 2), mesh_of((4,), ("chain",)), "chain"), capsys, chains=8)
    assert "padding" not in picture.text()
    assert "gradient" not in picture.html()
    assert not any(patch.get_hatch() for patch in picture.plot().patches)


def test_padding_of_a_chain_dimension_that_runs_across(capsys):
    mesh = mesh_of((2, 2), ("data", "chain"))
    ax = show(put((4, 4), mesh, "data", "chain"), capsys, dims=("row", "chain"), chains=3).plot()
    hatched = [(patch.get_x(), patch.get_width()) for patch in ax.patches if patch.get_hatch()]
    assert hatched == [(0.75, 0.25), (0.75, 0.25)]


# ---- where it appears ----


def test_prints_once_and_plainly_when_not_a_terminal(capsys):
    picture = show_sharding(put((8,), mesh_of((4,), ("chain",)), "chain"), names="start")
    out = capsys.readouterr().out
    assert out == f"{picture}\n"
    assert out.count("cpu:3") == 1
    assert "\x1b" not in out
    assert "\n" not in repr(picture) and repr(picture).startswith("ShardingPicture(1 array, 1 placement")


def test_prints_in_colour_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show_sharding(put((8,), mesh_of((4,), ("chain",)), "chain"))
    out = capsys.readouterr().out
    assert "\x1b[38;2;0;114;178m" in out  # the first colour of the palette, #0072B2
    monkeypatch.setenv("NO_COLOR", "1")
    show_sharding(put((8,), mesh_of((4,), ("chain",)), "chain"))
    assert "\x1b" not in capsys.readouterr().out


def test_prints_on_a_stream_that_knows_ascii_only(monkeypatch):
    import io

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show_sharding(put((8,), mesh_of((4,), ("chain",)), "chain"))
    sys.stdout.flush()
    assert b"cpu:3" in raw.getvalue() and b"----" in raw.getvalue()


def test_notebook_gets_html_and_nothing_is_printed(capsys, monkeypatch):
    shown = []
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = lambda html: html, shown.append
    ipython = types.ModuleType("IPython")
    ipython.get_ipython, ipython.display = (lambda: types.SimpleNamespace(kernel=object())), display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    picture = show_sharding(put((8,), mesh_of((4,), ("chain",)), "chain"))
    assert shown == [picture.html()]
    assert capsys.readouterr().out == ""
    assert not hasattr(picture, "_repr_html_")  # it would show the grid a second time


def test_ax_draws_all_parts_and_prints_nothing(capsys):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    picture = show_sharding(FakeRun(mesh_of((4,), ("chain",)), chains=5), ax=ax)
    assert capsys.readouterr().out == ""
    assert isinstance(picture, ShardingPicture)
    assert len(ax.child_axes) == 3
    assert any(patch.get_hatch() for patch in all_patches(ax))
    assert "cpu:3" in written(ax)
    assert picture.plot(ax) is ax


def test_text_keeps_every_word_at_any_width(capsys):
    picture = show(put((4096, 100, 2), mesh_of((8,), ("chain",)), "chain"), capsys, chains=4000)
    for width in (40, 60, 80, 100):
        text = picture.text(width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "\u2026" not in text
        words = set(text.replace(";", " ").split())
        assert {"cpu:7", "3584-3999,", "[3584:4096,", "(512,", "padding", "4000-4095"} <= words, width
    assert picture.text(width=200) == picture.text(width=400)  # no wider than needed


def test_colours_agree_between_forms_and_pictures(capsys):
    """A device keeps its colour, whichever other devices are in the picture."""
    mesh = mesh_of((2,), ("chain",), order=[5, 3])
    picture = show(put((4,), mesh, "chain"), capsys)
    rgb = [int(PALETTE[5][i : i + 2], 16) for i in (1, 3, 5)]
    assert f"\x1b[38;2;{rgb[0]};{rgb[1]};{rgb[2]}m" in picture.text(color=True)
    assert f"background:{PALETTE[5]}" in picture.html()
    first = picture.plot().patches[0]
    assert matplotlib.colors.to_hex(first.get_facecolor()).upper() == PALETTE[5]
    assert len(set(PALETTE)) == 16


def test_html_escapes_names_and_has_no_scripts(capsys):
    evil = "<script>alert('x')</script>&\""
    picture = show({"a": put((8,), mesh_of((4,), ("chain",)), "chain")}, capsys, names=[evil], dims=("<b>",))
    parsed = read_html(picture.html())
    assert parsed.tags <= {"div", "table", "tbody", "tr", "td", "th", "span", "br"}
    assert any(evil in words for words in parsed.words)
    tree = {"a": np.zeros(2), "b": np.zeros(2)}
    parsed = read_html(show(tree, capsys, names=[evil, "b"]).html())  # the table of several arrays
    assert "script" not in parsed.tags and evil in parsed.words
    assert evil in picture.text()  # and rich's own markup is not interpreted either
    assert "[bold]x[/bold]" in show(np.zeros(2), capsys, names="[bold]x[/bold]").text()


def test_nothing_compiles_and_nothing_moves(capsys):
    mesh = mesh_of((4,), ("chain",))
    tree = {
        "keys": jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(mesh, P("chain"))),
        "x": put((8, 3), mesh, "chain"),
        "s": put((), mesh),
    }
    seen = []

    def listen(event: str, duration: float, **_) -> None:
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with jax.transfer_guard("disallow_explicit"):
            picture = show_sharding(tree, chains=7)
            picture.html(), picture.plot()
        assert [event for event in seen if event.endswith("backend_compile_duration")] == []
        jax.jit(lambda x: x * 3 + 1)(jnp.zeros(17))  # the listener would have heard
        assert any(event.endswith("backend_compile_duration") for event in seen)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    capsys.readouterr()


# ---- bad input ----


def test_bad_input_is_named(capsys):
    x = put((8, 2), mesh_of((4,), ("chain",)), "chain")
    for chains in (0, -1, True):
        with pytest.raises(InputError, match="`chains` must be a positive integer"):
            show_sharding(x, chains=chains)
    with pytest.raises(InputError, match="`chains` must be a positive integer, got"):
        show_sharding(FakeRun(mesh_of((4,), ("chain",)), chains=2.5))
    with pytest.raises(InputError, match="`dims` names 3 dims"):
        show_sharding(x, dims=("chain", "draw", "x"))
    with pytest.raises(InputError, match="`dims` names \\['b'\\]"):
        show_sharding({"a": x}, dims={"b": ("chain",)})
    with pytest.raises(InputError, match="`names` has 2 names for 1 array"):
        show_sharding(x, names=["a", "b"])
    with pytest.raises(InputError, match="traced"):
        jax.jit(show_sharding)(x)
    assert capsys.readouterr().out == ""


def test_nothing_to_show(capsys):
    picture = show({}, capsys)
    assert picture.text() == "nothing to show: no arrays"
    assert "nothing to show" in picture.html()
    assert picture.plot() is not None

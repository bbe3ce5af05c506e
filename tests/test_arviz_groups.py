"""Results as ArviZ's container: groups, names, dtypes, and the way to disk and back; the summary and its print."""

import dataclasses
import datetime
import importlib.util
import io
import json
import pathlib

import arviz as az
import jax.numpy as jnp
import numpy as np
import pytest

from chainmesh._errors import InputError
from chainmesh.sampler._arviz import to_arviz
from chainmesh.sampler._json import json_text
from chainmesh.sampler._summary import print_summary, summary

OLD = int(az.__version__.split(".")[0]) == 0
ENGINES = [
    engine
    for engine, needed in (("h5netcdf", "h5py"), ("netcdf4", "netCDF4"))
    if importlib.util.find_spec(needed) is not None
]
GROUPS = (
    "posterior",
    "sample_stats",
    "observed_data",
    "constant_data",
    "warmup_posterior",
    "warmup_sample_stats",
)
CHAINS, DRAWS = 3, 7


def everything():
    """A run with what has gone wrong on the way to netCDF before: dtypes, names, shapes, labels, attributes."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=(CHAINS, DRAWS, *shape))

    posterior = {
        "b": jnp.asarray(normal(2, 3), jnp.float32),
        "z": normal(),
        "count": rng.integers(0, 5, (CHAINS, DRAWS, 4)),
        "small": np.ones((CHAINS, DRAWS), np.uint8),
        "flag": normal() > 0,
        "half": jnp.ones((CHAINS, DRAWS, 2), jnp.bfloat16),
        "float16": np.ones((CHAINS, DRAWS), np.float16),
        "none_of_it": normal(0),
        "outer/inner": normal(2),
        "outer.inner": normal(),
        "chain": normal(2),
        "draw": normal(),
        "school": normal(2),
        "(w)": normal(),
        "β": normal(),
        "wave": normal(2) + 1j * normal(2),
        "visit": normal(2),
    }
    stats = {
        "lp": normal(),
        "diverging": normal() > 1,
        "n_steps": np.full((CHAINS, DRAWS), 3, np.int32),
        "tree_depth": np.full((CHAINS, DRAWS), 2),
    }
    return {
        "posterior": posterior,
        "sample_stats": stats,
        "warmup_posterior": {"z": normal()[:, :5]},
        "warmup_sample_stats": {"diverging": normal()[:, :5] > 0},
        "observed_data": {"y": rng.normal(size=4), "missing": None},
        "constant_data": {"X": rng.normal(size=(4, 2)), "label": np.array(["a", "bb"]), "draw": np.arange(3)},
        "dims": {
            "b": ("g", "k/k"),
            "count": (None,),
            "school": ("school",),
            "chain": ("chain",),
            "wave": ("part",),
            "visit": ["day"],
            "y": ("obs",),
            "X": ("obs",),
        },
        "coords": {
            "g": ["u", "v"],
            "k/k": [10, 20, 30],
            "school": ["Choate", "Déerfield"],
            "part": [1.5, 2.5],
            "day": np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"),
            "obs": [True, False, True, True],
            "unused": [1, 2],
        },
        "attrs": {
            "seed": 2**64 - 1,
            "thin": np.int64(2),
            "sampling_time": np.float32(1.5),
            "settings": {"kernel": "nuts", "inverse_mass": jnp.ones(2), "limit": float("nan")},
            "mesh": [("chain", 4)],
            "reproducible": False,
            "stopped": None,
            "empty": "",
        },
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_survives_the_disk(engine, tmp_path):
    written = to_arviz(**everything())
    assert type(written).__name__ == ("InferenceData" if OLD else "DataTree")
    path = str(tmp_path / "run.nc")
    written.to_netcdf(path, engine=engine)
    read = az.from_netcdf(path, engine=engine)
    for group in GROUPS:
        before, after = written[group], read[group]
        assert set(before.data_vars) == set(after.data_vars) and set(before.coords) == set(after.coords)
        for name in before.data_vars:
            assert isinstance(before[name].data, np.ndarray)
            assert before[name].dims == after[name].dims
            if before[name].dtype.kind != "U":
                assert before[name].dtype == after[name].dtype, name
            np.testing.assert_array_equal(before[name].values, after[name].values)
        for name in before.coords:
            np.testing.assert_array_equal(before[name].values, after[name].values)
        for key, value in before.attrs.items():
            assert after.attrs[key] == value
    assert read.attrs["inference_library"] == "chainmesh"


def test_an_engine_is_there():
    assert ENGINES, "neither h5py (for h5netcdf) nor netCDF4 is installed: to_netcdf cannot work"


def test_dims_coords_and_dtypes():
    given = everything()
    tree = to_arviz(**given)
    posterior = tree["posterior"]
    assert posterior["b"].dims == ("chain", "draw", "g", "k.k") and posterior["z"].dims == ("chain", "draw")
    assert posterior["count"].dims == ("chain", "draw", "count_dim_0")
    assert list(posterior["k.k"].values) == [10, 20, 30]
    np.testing.assert_array_equal(
        posterior["b"].sel(chain=2, draw=3, g="v").values, np.asarray(given["posterior"]["b"])[2, 3, 1]
    )
    assert posterior["none_of_it"].shape == (CHAINS, DRAWS, 0)
    assert posterior["half"].dtype == np.float32 and posterior["count"].dtype.kind == "i"
    assert posterior["wave_real"].dims == ("chain", "draw", "part")
    stats = tree["sample_stats"]
    assert stats["diverging"].dtype == bool and stats["n_steps"].dtype == np.int32
    assert dict(tree["warmup_posterior"].sizes)["draw"] == 5
    assert tree["observed_data"]["y"].dims == ("obs",) and "missing" not in tree["observed_data"]
    assert tree["constant_data"]["X"].dims == ("obs", "X_dim_1")


def test_names_that_netcdf_forbids_are_changed_and_recorded():
    tree = to_arviz(**everything())
    sites = json.loads(tree.attrs["site_names"])
    assert sites == {
        "outer.inner_1": "outer/inner",
        "chain_site": "chain",
        "draw_site": "draw",
        "_(w)": "(w)",
    }
    assert json.loads(tree.attrs["dim_names"]) == {"k.k": "k/k", "school_dim": "school", "chain_dim": "chain"}
    assert list(tree["posterior"]["school_dim"].values) == ["Choate", "Déerfield"]
    np.testing.assert_array_equal(
        tree["posterior"]["outer.inner_1"].values, everything()["posterior"]["outer/inner"]
    )
    plain = to_arviz(posterior={"x": np.zeros((2, 3))})
    assert "site_names" not in plain.attrs and "dim_names" not in plain.attrs


def test_attributes():
    tree = to_arviz(**everything())
    for attrs in (tree.attrs, tree["posterior"].attrs, tree["sample_stats"].attrs):
        assert attrs["inference_library"] == "chainmesh" and attrs["inference_library_version"]
        assert datetime.datetime.fromisoformat(attrs["created_at"]).tzinfo is not None
        assert attrs["seed"] == str(2**64 - 1) and attrs["thin"] == 2 and attrs["sampling_time"] == 1.5
        assert json.loads(attrs["settings"]) == {"kernel": "nuts", "inverse_mass": [1.0, 1.0], "limit": "nan"}
        assert json.loads(attrs["mesh"]) == [["chain", 4]]
        assert attrs["reproducible"] == 0 and attrs["stopped"] == "null" and attrs["empty"] == ""


def test_arviz_reads_it():
    rng = np.random.default_rng(0)
    tree = to_arviz(
        posterior={"mu": rng.normal(size=(4, 50)), "theta": rng.normal(size=(4, 50, 3))},
        sample_stats={"diverging": np.zeros((4, 50), bool), "energy": rng.normal(size=(4, 50))},
        dims={"theta": ["school"]},
        coords={"school": ["a", "b", "c"]},
    )
    assert list(az.summary(tree).index) == ["mu", "theta[a]", "theta[b]", "theta[c]"]
    assert float(az.rhat(tree)["mu"] if OLD else az.rhat(tree["posterior"])["mu"]) < 1.2
    groups = set(tree.groups()) if OLD else {path.strip("/") for path in tree.groups if path != "/"}
    assert groups == {"posterior", "sample_stats"}


@pytest.mark.parametrize(
    ("dims", "coords", "said"),
    [
        ({"x": ("a", "b", "c")}, {}, "names 3 axes of 'x'"),
        ({"x": ("a", "a")}, {}, "one name for two axes"),
        ({"x": ("a",)}, {"a": [1, 2, 3]}, "has 3 labels, where 'x' is 2 long"),
        ({"x": ("a",), "y": ("a",)}, {}, "give them different names in `dims`"),
    ],
)
def test_dims_and_coords_that_do_not_fit(dims, coords, said):
    posterior = {"x": np.zeros((2, 3, 2, 4)), "y": np.zeros((2, 3, 5))}
    with pytest.raises(InputError, match=said):
        to_arviz(posterior=posterior, dims=dims, coords=coords)
    with pytest.raises(InputError, match="draws need a chain and a draw axis"):
        to_arviz(posterior={"x": np.zeros(3)})


def test_one_draw_one_chain_and_empty_runs():
    assert to_arviz(posterior={"x": np.zeros((1, 1))})["posterior"]["x"].shape == (1, 1)
    assert to_arviz(posterior={"x": np.zeros((4, 0, 2))})["posterior"]["x"].shape == (4, 0, 2)


def test_masked_and_mixed_labels():
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    tree = to_arviz(
        posterior={"x": np.zeros((1, 2, 2))},
        observed_data={"y": masked},
        dims={"x": ["who"]},
        coords={"who": np.array(["a", None], dtype=object)},
    )
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, [1, np.nan, 3])
    assert list(tree["posterior"]["who"].values) == ["a", "None"]


def test_json_of_settings():
    @dataclasses.dataclass
    class Settings:
        depth: int
        metric: np.ndarray

    value = {
        "s": Settings(10, np.arange(3)),
        2: {"b", "a"},
        "path": pathlib.PurePosixPath("a/b"),
        "big": np.zeros(2000),
        "fn": np.mean,
        "nothing": None,
        "yes": np.bool_(True),
        "inf": np.float32("inf"),
    }
    got = json.loads(json_text(value))
    assert got["s"] == {"type": "Settings", "depth": 10, "metric": [0, 1, 2]} and got["2"] == ["a", "b"]
    assert got["path"] == "a/b" and "2000" in got["big"] and got["fn"] == "mean"
    assert got["nothing"] is None and got["yes"] is True and got["inf"] == "inf"
    assert json_text({"b": 1, "a": 2}) == json_text({"a": 2, "b": 1})


def table():
    rng = np.random.default_rng(1)
    posterior = {
        "mu": rng.normal(size=(4, 50)).astype(np.float32),
        "theta": rng.normal(size=(4, 50, 2, 30)),
        "fixed": np.ones((4, 50)),
    }
    return posterior, {"theta": (None, "school")}, {"school": [f"s{i}" for i in range(30)]}


def test_summary():
    posterior, dims, coords = table()
    frame = summary(posterior, dims=dims, coords=coords)
    assert list(frame.columns) == ["mean", "sd", "q05", "q50", "q95", "ess_bulk", "ess_tail", "r_hat"]
    assert list(frame.index[:3]) == ["mu", "theta[0,s0]", "theta[0,s1]"] and len(frame) == 62
    assert frame.loc["theta[1,s7]", "mean"] == pytest.approx(posterior["theta"][:, :, 1, 7].mean())
    assert np.isnan(frame.loc["fixed", "r_hat"])
    assert list(summary(posterior, var_names="mu", round_to=2).index) == ["mu"]
    assert summary(posterior, round_to=2).loc["mu", "mean"] == round(float(posterior["mu"].mean()), 2)
    assert len(summary({})) == 0
    with pytest.raises(InputError, match="did you mean 'theta'"):
        summary(posterior, var_names=["thet"])


def test_summary_in_print_is_cut_and_says_so():
    posterior, dims, coords = table()
    frame = summary(posterior, dims=dims, coords=coords)
    page = io.StringIO()
    print_summary(frame, file=page, max_rows=5)
    lines = page.getvalue().splitlines()
    assert len(lines) == 7 and "theta[0,s3]" in lines[5] and lines[-1] == "... and 57 more rows."
    page = io.StringIO()
    print_summary(frame.iloc[-2:], file=page)
    assert "more rows" not in page.getvalue() and page.getvalue().splitlines()[-1].rstrip().endswith("-")

"""What of a model's arguments is traced, what is static, and what is refused."""

import collections
import enum
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainmesh._errors import DataError
from chainmesh.sampler._data import split_data, static


class Link(enum.Enum):
    ID = 1
    LOG = 2


class Strange:
    __hash__ = None


def test_arrays_and_floats_are_traced_the_rest_is_static():
    Pair = collections.namedtuple("Pair", "x n")
    data = {
        "y": np.arange(3.0),
        "flags": np.array([True, False]),
        "county": np.array([0, 1], np.int64),
        "scale": 0.3,
        "half": jnp.float32(0.5),
        "n": 3,
        "m": np.int64(4),
        "zero_d": np.array(5),
        "jax_zero_d": jnp.array(6),
        "on": np.True_,
        "link": "log",
        "kind": Link.LOG,
        "none": None,
        "f": np.exp,
        "pair": Pair(np.ones((2, 1), np.float16), 7),
        "empty": {},
    }
    inputs = split_data(({"y": [0, np.zeros(0)]},), data)
    assert inputs.paths == (
        "args[0]['y'][1]",
        *(f"data['{k}']" for k in ("county", "flags", "half")),
        "data['pair'].x",
        "data['scale']",
        "data['y']",
    )
    assert [str(x.dtype) for x in inputs.traced] == [
        "float32",
        "int32",
        "bool",
        "float32",
        "float16",
        "float32",
        "float32",
    ]
    args, rebuilt = inputs.rebuild([f"<{p}>" for p in inputs.paths])
    assert args == ({"y": [0, "<args[0]['y'][1]>"]},)
    assert rebuilt.keys() == data.keys()
    for name, value in dict(
        n=3, m=4, zero_d=5, jax_zero_d=6, on=True, link="log", kind=Link.LOG, f=np.exp
    ).items():
        assert rebuilt[name] == value and type(rebuilt[name]) is type(value)
    assert (
        rebuilt["pair"] == Pair("<data['pair'].x>", 7) and rebuilt["none"] is None and rebuilt["empty"] == {}
    )


def test_static_keys_compare_values():
    def key(**data):
        return split_data((), data).static_key

    assert key(x=np.zeros(3), n=2, s="a") == key(x=np.ones(5), n=2, s="a")
    assert hash(key(n=2)) == hash(key(n=2))
    different = [key(n=1), key(n=True), key(n=None), key(n="1"), key(n=1.0), key(n=[1]), key(m=1),
                 key(n=static(1.0)), key(n=static(2.0)), key(n=static(np.arange(3))), key(n=static(np.arange(3) * 2)),
                 key(n=Link.ID), key(n=Link.LOG), key(n=np.exp), key(n=np.log)]  # fmt: skip
    assert len(set(different)) == len(different)
    assert key(step=np.float64(0.3)) == key(step=0.3) == key(step=jnp.float32(0.3)) == key(step=np.array(0.3))
    traced = [
        split_data((), dict(s=s)).traced[0] for s in (np.float64(0.3), 0.3, np.array(0.3), jnp.float32(0.3))
    ]
    assert {(x.shape, x.dtype, x.item()) for x in traced} == {
        ((), np.dtype(np.float32), np.float32(0.3).item())
    }


def test_static_arrays_arrive_concrete():
    x = jnp.arange(3)
    _, data = split_data((), {"x": static(x), "both": static({"a": np.ones(2), "b": "s"})}).rebuild(())
    assert type(data["x"]) is np.ndarray and data["x"].tolist() == [0, 1, 2]
    assert type(data["both"]["a"]) is np.ndarray and data["both"]["b"] == "s"
    with pytest.raises(DataError, match=r"data\['x'\].*hashable"):
        split_data((), {"x": static(Strange())})


def test_the_users_arrays_stay_as_they_are():
    x64, x32 = np.arange(4.0), np.arange(4, dtype=np.float32)
    on_device = jnp.ones(3)
    inputs = split_data((x64, x32, on_device))
    assert x64.dtype == np.float64 and x64.tolist() == [0, 1, 2, 3]
    assert np.shares_memory(inputs.traced[1], x32), "no copy where no cast is needed"
    assert inputs.traced[2] is on_device
    held = np.ones(3)
    marked = static(held)
    _, data = split_data((), {"x": marked}).rebuild(())
    held[0] = 5
    assert data["x"][0] == 1


def test_weak_types_become_strong():
    weak = jax.jit(lambda: jnp.broadcast_to(2.0, (3,)))()
    x = split_data((weak,)).traced[0]
    assert not jax.typeof(x).weak_type and x.dtype == np.float32


@pytest.mark.parametrize(
    "value, words",
    [
        (np.array(["a", "b"]), "integer codes"),
        (np.array([1, None], object), "object"),
        (np.array(["2020-01-01"], "datetime64[D]"), "days since"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked"),
        (np.ones(2) * 1j, "complex"),
        (2j, "complex"),
        (jnp.ones(2) * 1j, "complex"),
        (np.array([3_000_000_000]), "3000000000"),
        (np.array([-3_000_000_000, 1]), "-3000000000"),
        (np.array([5_000_000_000], np.uint64), "5000000000"),
        (np.array([1e300]), "1e\\+300"),
        (np.zeros(2, [("a", float)]), "dtype"),
        (jax.random.key(0), "key_data"),
        (Strange(), "cm.static"),
        (object(), "np.asarray"),
        (collections.UserDict(a=1), "dicts"),
    ],
)
def test_what_cannot_be_represented_is_named(value, words):
    with pytest.raises(DataError, match=rf"data\['cfg'\]\['bad'\].*{words}"):
        split_data((), {"cfg": {"bad": value}})


def test_deleted_and_traced_values_are_refused():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(DataError, match=r"args\[0\] was deleted"):
        split_data((x,))
    with pytest.raises(DataError, match="cannot run inside jit"):
        jax.jit(lambda x: split_data((x,)).traced[0])(np.ones(3))


def test_args_and_data_themselves():
    for args, data, words in ((np.ones(3), None, "args=\\(x,\\)"), ((), [1], "dict"), ((), {1: 2}, "names"),
                              ((), {"d": {1: 0, "a": 1}}, "container")):  # fmt: skip
        with pytest.raises(DataError, match=words):
            split_data(args, data)
    assert split_data().rebuild(()) == ((), {})
    assert split_data(({},), {"f": functools.partial(int, base=2)}).traced == ()


# --- float64 into float32


@pytest.mark.parametrize(
    "values",
    [
        1e9 + 0.25 * np.arange(50),
        2e9 + np.arange(100_000.0),
        1 - 1e-9 * np.arange(1, 100),
        np.concatenate([[0.0, np.nan], 1e9 + 0.25 * np.arange(50)]),
    ],
    ids=["quarters", "identifiers", "near one", "with a zero"],
)
def test_rounding_that_merges_values_warns(values):
    with pytest.warns(UserWarning, match=r"data\['t'\].*float32") as caught:
        split_data((), {"t": values})
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"column 1 of data\['X'\]"):
        split_data((), {"X": np.stack([np.zeros_like(values), values], axis=-1)})


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=300_000),
        np.random.default_rng(0).normal(size=(1000, 40)) * 1e6,
        np.arange(2000, 2030, 0.25),
        np.array([0.3, 0.1 + 0.2, 0.7, 0.1 * 7]),
        np.full(10, np.nan),
        np.array([np.inf, 1.0]),
        np.linspace(0, 1, 2000),
        np.arange(1e6),
    ],
)
def test_harmless_rounding_is_silent(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split_data((), {"x": values})


def test_double_precision_keeps_float64_and_int64():
    with jax.enable_x64(True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            inputs = split_data((1e9 + 0.25 * np.arange(9), np.array([3_000_000_000]), 0.1))
        assert [str(x.dtype) for x in inputs.traced] == ["float64", "int64", "float64"]


# --- pandas


def test_pandas_becomes_arrays():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"x": [0.0, 1.0, 2.0], "g": pd.array([0, 1, 1], dtype="Int64"), "b": [True, False, True]},
        index=[7, 8, 9],
    )
    frame.index.name = "obs"
    numeric = frame[["x", "g"]]
    inputs = split_data(
        (frame["x"], frame["g"], frame["b"], numeric, frame.index, pd.array([1.5], dtype="Float64"))
    )
    assert [x.tolist() for x in inputs.traced] == [
        [0.0, 1.0, 2.0], [0, 1, 1], [True, False, True], [[0, 0], [1, 1], [2, 1]], [7, 8, 9], [1.5]]  # fmt: skip
    assert [str(x.dtype) for x in inputs.traced] == [
        "float32",
        "int32",
        "bool",
        "float32",
        "int32",
        "float32",
    ]
    name, index = inputs.labels["args[3]"][0]
    assert (
        name == "obs"
        and index.tolist() == [7, 8, 9]
        and inputs.labels["args[3]"][1][1].tolist() == ["x", "g"]
    )
    plain = split_data(tuple(np.asarray(x) for x in (frame["x"], frame["b"])))
    np.testing.assert_array_equal(plain.traced[0], inputs.traced[0])


def test_pandas_columns_that_are_no_numbers_are_named():
    pd = pytest.importorskip("pandas")
    good = [0.0, 1.0]
    for column, words in ((["u", "v"], "pd.factorize"), (pd.Categorical(["u", "v"]), "cat.codes"),
                          (pd.array([1, None], dtype="Int64"), "missing"),
                          (pd.to_datetime(["2020-01-01", "2020-01-02"]), "days")):  # fmt: skip
        with pytest.raises(DataError, match=rf"column 'bad' of data\['df'\].*{words}"):
            split_data((), {"df": pd.DataFrame({"good": good, "bad": column})})
        with pytest.raises(DataError, match=rf"data\['s'\].*{words}"):
            split_data((), {"s": pd.Series(column)})
    missing = split_data((), {"s": pd.Series(pd.array([1.0, None], dtype="Float64"))}).traced[0]
    assert missing[0] == 1 and np.isnan(missing[1])
    with pytest.warns(UserWarning, match=r"column 't' of data\['df'\]"):
        split_data((), {"df": pd.DataFrame({"x": np.arange(50.0), "t": 1e9 + 0.25 * np.arange(50)})})

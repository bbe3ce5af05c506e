"""A key for a traced computation: equal for two traces of the same thing, different for anything else.

Programs are reused by this key, so a wrong hit would silently run another model. Every equation, literal (by
its
bytes), inner constant and parameter enters. Functions inside parameters (rules of custom_jvp and custom_vjp,
callbacks) are not part of a jaxpr's equations; they enter as the live function objects. JAX wraps them
in closures of its own, new in each trace: of those, the code and what they close over enters. Whatever is
unknown
enters by identity: the worst outcome of a doubt is a compilation.
"""

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

_JAX_MODULES = ("jax", "jaxlib")
# Bookkeeping of a trace: other objects each time, without influence on the computation.
_IGNORED = {
    "Store",
    "EqualStore",
    "DebugInfo",
    "DynamicJaxprTrace",
    "JaxprStackFrame",
    "TraceTag",
    "SourceInfo",
}


class ProgramKey:
    """Hashable identity of a traced computation. Its hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: Hashable):
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramKey) and self._hash == other._hash and self._parts == other._parts


def program_key(closed: jex.ClosedJaxpr) -> ProgramKey:
    """The key of a computation whose outer constants become arguments.

    Args:
        closed: a ClosedJaxpr. Of its constants only shape, dtype and weak type enter the key; the values of
            constants inside inner jaxprs (jitted functions, loops) enter in full.
    """
    walker = _Walker()
    consts = tuple(walker.aval(jax.typeof(c)) for c in closed.consts)
    return ProgramKey((consts, walker.body(closed.jaxpr)))


class _Walker:
    def __init__(self) -> None:
        self.memo: dict[int, Hashable] = {}
        self.alive: list[Any] = []  # ids in `memo` stay unique only while their objects live

    def jaxpr(self, jaxpr: Any) -> Hashable:
        """An inner jaxpr, with the values of its constants."""
        known = self.memo.get(id(jaxpr))
        if known is None:
            consts = tuple(self.array(c) for c in getattr(jaxpr, "consts", ()))
            known = ("jaxpr", consts, self.body(getattr(jaxpr, "jaxpr", jaxpr)))
            self.memo[id(jaxpr)] = known
            self.alive.append(jaxpr)
        return known

    def body(self, jaxpr: Any) -> Hashable:
        number: dict[Any, int] = {}

        def define(v: Any) -> Hashable:
            number[v] = len(number)
            return self.aval(v.aval)

        def use(v: Any) -> Hashable:
            return (self.array(v.val), self.aval(v.aval)) if isinstance(v, jex.Literal) else number[v]

        inputs = tuple(map(define, (*jaxpr.constvars, *jaxpr.invars)))
        equations = []
        for eqn in jaxpr.eqns:
            read = tuple(map(use, eqn.invars))
            params = tuple((name, self.value(eqn.params[name])) for name in sorted(eqn.params))
            ctx = eqn.ctx
            context = (
                (str(ctx.compute_type), ctx.threefry_partitionable, str(ctx.xla_metadata)) if ctx else None
            )
            equations.append((eqn.primitive, read, params, context, tuple(map(define, eqn.outvars))))
        return len(jaxpr.constvars), inputs, tuple(equations), tuple(map(use, jaxpr.outvars))

    def aval(self, aval: Any) -> Hashable:
        # Avals compare by shape, dtype, weak type, sharding and memory space.
        return (aval, getattr(aval, "weak_type", False))

    def array(self, x: Any) -> Hashable:
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return ("keys", str(x.dtype), self.array(jax.random.key_data(x)))
        a = np.asarray(x)
        data = a.tobytes()
        return (str(a.dtype), a.shape, data if len(data) <= 64 else hashlib.sha256(data).digest())

    def value(self, x: Any) -> Hashable:
        """Any parameter of an equation, or anything a wrapper closes over."""
        if x is None or isinstance(x, (str, bytes)):
            return x
        if isinstance(x, enum.Enum):
            return x
        if isinstance(x, (bool, int)):
            return (type(x), x)
        if isinstance(x, (float, complex)):
            return (type(x), repr(x))
        if isinstance(x, (jex.ClosedJaxpr, jex.Jaxpr)):
            return self.jaxpr(x)
        if isinstance(x, (np.ndarray, np.generic, jax.Array)):
            return self.array(x)
        if isinstance(x, (tuple, list)):
            return (type(x), tuple(map(self.value, x)))
        if isinstance(x, (dict, Mapping)):
            return (dict, tuple((repr(k), self.value(x[k])) for k in sorted(x, key=repr)))
        if type(x).__name__ in _IGNORED and _of_jax(type(x)):
            return type(x).__name__
        if type(x).__name__ == "Unhashable" and _of_jax(type(x)):
            return ("unhashable", self.value(x.val))
        if isinstance(x, jex.JaxprEqn):  # closed over by the rule that removes unused outputs
            operands = tuple(
                self.array(v.val) if isinstance(v, jex.Literal) else self.aval(v.aval) for v in x.invars
            )
            return (
                x.primitive,
                operands,
                self.value(dict(x.params)),
                tuple(self.aval(v.aval) for v in x.outvars),
            )
        if callable(x) or _is_wrapped(x):
            return self.function(x)
        if type(x) is object:  # sentinels
            return object
        # Value types (avals, dtypes, trees, shardings, frozen dataclasses) compare by value, all else by
        # identity.
        return x if _hashable(x) else _Same(x)

    def function(self, f: Any) -> Hashable:
        known = self.memo.get(id(f))
        if known is not None:
            return known
        self.memo[id(f)] = "recursive"
        self.alive.append(f)
        key = self._function(f)
        self.memo[id(f)] = key
        return key

    def _function(self, f: Any) -> Hashable:
        if isinstance(f, functools.partial):
            return ("partial", self.value(f.func), self.value(f.args), self.value(f.keywords))
        if isinstance(f, types.MethodType):
            return ("method", self.value(f.__func__), self.value(f.__self__))
        if isinstance(f, type):
            return _Same(f)
        if _is_wrapped(f):
            return ("wrapped", self.value(f.f), self.value(tuple(f.transforms)), self.value(f.params))
        if isinstance(f, types.FunctionType):
            if not _of_jax(f) or _importable(f):
                return _Same(f)
            cells = tuple(self.cell(c) for c in f.__closure__ or ())
            return ("closure", f.__code__, cells, self.value(f.__defaults__), self.value(f.__kwdefaults__))
        if _of_jax(type(f)) and type(f).__eq__ is object.__eq__ and hasattr(f, "__dict__"):
            return ("callable", type(f), self.value(vars(f)))
        return f if _hashable(f) else _Same(f)

    def cell(self, cell: Any) -> Hashable:
        try:
            content = cell.cell_contents
        except ValueError:
            return None
        # A memo table of JAX: filled or empty, it changes nothing.
        return dict if isinstance(content, dict) and not content else self.value(content)


class _Same:
    """Equal only to itself's object, which it keeps alive."""

    __slots__ = ("object",)

    def __init__(self, x: Any):
        self.object = x

    def __hash__(self) -> int:
        return id(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.object is other.object


def _of_jax(x: Any) -> bool:
    return (getattr(x, "__module__", None) or "").partition(".")[0] in _JAX_MODULES


def _is_wrapped(x: Any) -> bool:
    """Whether it is JAX's WrappedFun: a function, and what JAX did to it."""
    return _of_jax(type(x)) and type(x).__name__ == "WrappedFun"


def _importable(f: Any) -> bool:
    found: Any = sys.modules.get(f.__module__)
    for name in f.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is f


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True

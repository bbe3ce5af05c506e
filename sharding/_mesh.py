"""Meshes of devices with the axes ("chain", "data"), and the number of host devices."""

import math
import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from chainmesh._errors import DeviceCountError, MeshError

CHAIN = "chain"
DATA = "data"


def _mesh(grid: np.ndarray) -> Mesh:
    # Auto axes: shard_map is manual over "chain" and leaves "data" to the compiler.
    return Mesh(grid, (CHAIN, DATA), axis_types=(AxisType.Auto, AxisType.Auto))


def chain_mesh(chains: int, devices: int | Sequence[jax.Device] | None = None, data: int = 1) -> Mesh:
    """A mesh with axes ("chain", "data") that spreads `chains` over devices.

    In one process the fewest devices that keep the busiest device's load minimal are taken: 6 chains on 4
    devices use 3 of them, two chains each. Over several processes every device is used. The mesh may be used
    for any number of chains, not only for the one it was made for.

    Args:
        chains: number of chains that will run.
        devices: the devices to choose from, or how many of `jax.devices()`; all of them when None.
        data: number of devices that share the data of one chain.

    Raises:
        MeshError: there are not enough devices, or they do not divide into groups of `data`.
    """
    if isinstance(chains, bool) or not isinstance(chains, int | np.integer) or chains < 1:
        raise MeshError(f"chains must be a positive integer, got {chains!r}.")
    if isinstance(data, bool) or not isinstance(data, int | np.integer) or data < 1:
        raise MeshError(
            f"data must be a positive integer (devices that share the data of a chain), got {data!r}."
        )
    available = jax.devices()
    if devices is None:
        chosen = available
    elif isinstance(devices, int | np.integer) and not isinstance(devices, bool):
        if devices < 1:
            raise MeshError(f"devices must be a positive number or a sequence of jax.Device, got {devices}.")
        if devices > len(available):
            raise MeshError(
                f"devices={devices}, but JAX sees {len(available)} ({available[0].platform}). On CPU, ask for more "
                f"with chainmesh.set_host_devices({devices}) before JAX starts."
            )
        chosen = available[:devices]
    elif isinstance(devices, Sequence) and not isinstance(devices, str | bytes):
        chosen = list(devices)
        if not chosen or not all(isinstance(d, jax.Device) for d in chosen):
            raise MeshError(f"devices must be a number or a sequence of jax.Device, got {devices!r}.")
        if len(set(chosen)) != len(chosen):
            raise MeshError("devices names a device twice.")
    else:
        raise MeshError(f"devices must be a number or a sequence of jax.Device, got {devices!r}.")
    if len(chosen) % data:
        raise MeshError(f"{len(chosen)} devices do not divide into groups of data={data}.")
    groups = len(chosen) // data
    if jax.process_count() == 1:
        groups = math.ceil(chains / math.ceil(chains / groups))
    return _mesh(np.array(chosen[: groups * data], dtype=object).reshape(groups, data))


def as_chain_mesh(mesh: object) -> Mesh:
    """The user's mesh as one with Auto axes ("chain", "data"), of the same devices in the same order.

    Taken are a mesh with one axis of any name, and a mesh with an axis "chain" and at most one other axis longer
    than one, over which data may be split. Axis types do not matter.

    Raises:
        MeshError: the mesh is abstract, or it does not say which axis carries the chains.
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(
            f"mesh must be a jax.sharding.Mesh (see chainmesh.chain_mesh), got {type(mesh).__name__}; "
            "an abstract mesh names no devices."
        )
    grid, names = mesh.devices, mesh.axis_names
    long = [i for i, size in enumerate(grid.shape) if size > 1]
    chain = names.index(CHAIN) if CHAIN in names else (0 if len(names) == 1 else None)
    if chain is None and len(long) == 1 and DATA in names and names[long[0]] != DATA:
        chain = long[0]
    if chain is None:
        raise MeshError(
            f"mesh has axes {names} and none is called 'chain', so it does not say where the chains go. "
            "Name one of them 'chain', or use chainmesh.chain_mesh(chains, devices, data)."
        )
    others = [i for i in long if i != chain]
    if len(others) > 1:
        raise MeshError(
            f"mesh has axes {dict(zip(names, grid.shape, strict=True))}: beside 'chain' at most one axis may be "
            "longer than 1 (data is split over it)."
        )
    grid = np.moveaxis(grid, chain, 0)
    return _mesh(grid.reshape(grid.shape[0], -1))


def set_host_devices(n: int) -> None:
    """Let the CPU appear as `n` JAX devices; call it before JAX starts.

    Use the number of physical cores: each device runs its chains on about one core.

    Raises:
        DeviceCountError: JAX has started with another number of devices.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise DeviceCountError(f"The number of host devices must be a positive integer, got {n!r}.")
    try:
        # Refuses by itself once backends exist; XLA_FLAGS loses against it.
        jax.config.update("jax_num_cpu_devices", int(n))
    except RuntimeError as error:
        have = jax.local_device_count("cpu")
        if have == n:
            return
        raise DeviceCountError(
            f"JAX has already started with {have} CPU device(s), so it cannot change to {n}. Call "
            f"chainmesh.set_host_devices({n}) before anything that uses JAX: before jax.devices(), before creating "
            "an array, and before `import blackjax` (which starts JAX). In a notebook, restart the kernel and call "
            "it in the first cell."
        ) from error


def idle_cores(mesh: Mesh) -> int:
    """Number of CPU cores that this process may use and `mesh` leaves idle; 0 when devices are not CPUs."""
    import psutil

    if mesh.devices.flat[0].platform != "cpu" or jax.process_count() > 1:
        return 0
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    cores = min(psutil.cpu_count(logical=False) or allowed, allowed)
    return max(cores - mesh.devices.size, 0)

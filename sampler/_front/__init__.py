"""chainmesh: many MCMC chains, any mesh of devices, one call."""

from chainmesh._errors import ChainmeshError as ChainmeshError

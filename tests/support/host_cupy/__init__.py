"""Stand-ins for GPUs: CuPy, the driver and several GPUs in the memory of the host.

gpus      GPUs that are numbers, and arrays that know theirs; for `dask_coop.cuda.peers`
lists     a chunk backend of plain lists, which may take CuPy's place
backend   a chunk backend of NumPy's functions, each held to a GPU, and a preload of workers
driver    copies that are made as late as may be
counted   CuPy whose kernels leave zeros, which counts waits, allocations and launches
costs     what another chunk costs of these, in many calls; for `tests/chunks/test_chunk_costs.py`
modules   CuPy and the driver for a module of `dask_coop.cuda` that is imported anew
launches  a launch over several GPUs that NumPy makes: are stretches and bases the right ones?
"""

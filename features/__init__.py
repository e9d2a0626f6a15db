"""PTX in, facts out: what a CUDA kernel does, without running it.

    ptx/          text -> Module, Kernel, Instruction (tolerant of PTX it does not know)
    cfg, loops    basic blocks, dominators, natural loops, data flow inside a block
    registers     how many registers a thread needs (given, declared, liveness)
    occupancy     resident blocks per SM and what limits them
    gpus/         one TOML file per GPU: physical facts, every number with its source
    schemas/      named, versioned feature vectors
    analysis      analyse(kernel, launch, gpu) -> KernelAnalysis: the one entrance

No machine learning, no web framework and no database below this line.
"""

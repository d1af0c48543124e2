"""Tests that run on every device: a list of cases, and a test program for each device.

    device_test(name = "norm", srcs = ["norm_test.cc"], deps = [...])

makes
    norm_cases           the cases as a library; tests/gpu links those of all such tests into programs for a GPU
    norm_cpu_test        on the CPU
    norm_emulated_test   on the emulated GPU: the CUDA kernels on the host

`cpu` and `emulated` are what each program links besides the cases: the backend, unless given. `cpu_tags`, `emulated_tags`:
their tags. `emulated_size` is for the emulated GPU, which is slow. `shards`: parts that run at the same time, on the CPU at
most two.
"""

load("//tools/build:defs.bzl", "mantissa_cc_library", "mantissa_cc_test")

def device_test(
        name,
        srcs,
        deps,
        size = "small",
        cpu = ["//core/backend:cpu_backend"],
        cpu_tags = [],
        emulated = ["//core/backend:cuda_backend_emulated"],
        emulated_tags = [],
        emulated_size = "medium",
        shards = 1):
    cases = name + "_cases"
    mantissa_cc_library(
        name = cases,
        testonly = True,
        srcs = srcs,
        hdrs = [],
        alwayslink = True,
        deps = deps + ["@gtest"],
    )
    mantissa_cc_test(
        name = name + "_cpu_test",
        size = size,
        srcs = [],
        shard_count = min(shards, 2),
        tags = cpu_tags,
        deps = [":" + cases] + cpu,
    )
    mantissa_cc_test(
        name = name + "_emulated_test",
        size = emulated_size,
        srcs = [],
        shard_count = shards,
        tags = emulated_tags + ["seldom-sanitized"],
        deps = [":" + cases] + emulated,
    )

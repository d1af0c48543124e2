"""device_test (tests/testing) for kernels: kernel_test(name = "add", deps = [...]) has its cases in add_test.cc."""

load("//tests/testing:device_test.bzl", "device_test")
load("//tools/build:defs.bzl", "mantissa_cc_test")

def kernel_test(name, srcs = [], deps = [], size = "small", emulated_size = "medium"):
    device_test(
        name = name,
        srcs = [name + "_test.cc"] + srcs,
        size = size,
        cpu = [":device_cpu"],
        emulated = [":device_cuda_emulated"],
        emulated_size = emulated_size,
        deps = [
            ":kernel_check",
            "//tests/reference:random_values",
        ] + deps,
    )

def seeded_faults_test(name, kernel, size = "medium"):
    """Does kernel_test(name = kernel) notice faults of the kernel? A question for who changes one of the two; slow."""
    program = ":" + kernel + "_emulated_test"
    mantissa_cc_test(
        name = name,
        size = size,
        data = [program],
        env = {"MANTISSA_FAULTY_PROGRAM": "$(rootpath %s)" % program},
        tags = [
            "no-sanitize",
            "slow",
        ],
        deps = [":seeded_faults"],
    )

// Checks for every kernel test: against the reference, equal bits on every schedule, contract errors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/core/kernels/device_under_test.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/kernels/tolerances.h"

namespace mantissa::kernel_test {

constexpr DType kFloatDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// On each variant of the device, `run` calls a kernel on fresh outputs and returns them. Take the size from
// DeviceUnderTest::large(), given more than 16384 elements; otherwise the CPU does not divide the work.
void expect_same_bits_on_every_schedule(const std::function<std::vector<Tensor>()>& run);

// Checks that each element is within allowed_error(dtype, expected, steps, magnitude, extra). magnitude and extra have
// one entry for each element; an empty extra means 0.
void expect_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& magnitude,
                  double steps, const std::string& what, const std::vector<double>& extra = {});

// Expects a ContractError whose message contains `text`.
void expect_contract_error(const std::function<void()>& call, const std::string& text);

std::vector<double> absolute(std::vector<double> values);
std::vector<double> sum_of(std::vector<double> a, const std::vector<double>& b);

}  // namespace mantissa::kernel_test

// Checks that every kernel test makes: against the reference, the same bits on every schedule, errors of the contract.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/core/kernels/device_under_test.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/kernels/tolerances.h"

namespace mantissa::kernel_test {

constexpr DType kFloatDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// On each variant of the device: `run` calls a kernel on fresh outputs and returns them. The size of its work comes
// from DeviceUnderTest::large() and is more than 16384 elements before that, else the CPU does not divide it.
void expect_same_bits_on_every_schedule(const std::function<std::vector<Tensor>()>& run);

// Each element within allowed_error(dtype, expected, steps, magnitude, extra). magnitude and extra have one entry for
// each element; no extra means 0.
void expect_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& magnitude,
                  double steps, const std::string& what, const std::vector<double>& extra = {});

// ContractError whose message contains `text`.
void expect_contract_error(const std::function<void()>& call, const std::string& text);

std::vector<double> absolute(std::vector<double> values);
std::vector<double> sum_of(std::vector<double> a, const std::vector<double>& b);

}  // namespace mantissa::kernel_test

// Checks that every kernel test makes: on each instruction set of this machine, against the reference, and bit for bit
// the same with 1 to 4 threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/core/cpu/tolerances.h"

namespace mantissa::cpu {

constexpr DType kFloatDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Runs `body` once on every instruction set that was compiled and that this CPU has.
void on_each_target(const std::function<void()>& body);

// `run` calls a kernel on fresh outputs and returns them. Its work must be larger than kBlockElements, else it is not
// threaded.
void expect_same_for_any_thread_count(const std::function<std::vector<Tensor>()>& run);

// Each element within allowed_error(dtype, expected, steps, magnitude); magnitude has one entry for each element.
void expect_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& magnitude,
                  double steps, const std::string& what);

// ContractError whose message contains `text`.
void expect_contract_error(const std::function<void()>& call, const std::string& text);

std::vector<double> absolute(std::vector<double> values);
std::vector<double> sum_of(std::vector<double> a, const std::vector<double>& b);

}  // namespace mantissa::cpu

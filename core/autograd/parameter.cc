#include "core/autograd/parameter.h"

#include <algorithm>

#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

// FNV-1a: a stable 32-bit name for the parameter's random stream.
uint32_t hash_name(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

constexpr int64_t kBlocksPerTask = 4096;   // blocks of four elements
constexpr uint32_t kInitStream = 0x1417u;  // keeps initial values apart from every other use of the seed

}  // namespace

Parameter& ParameterSet::add(std::string name, Shape shape, Init init) {
  MANTISSA_CHECK(find(name) == nullptr, "[parameters] '{}' is registered twice", name);
  auto parameter = std::make_unique<Parameter>();
  parameter->name = std::move(name);
  parameter->index = size();
  parameter->shape = shape;
  parameter->init = init;
  parameter->decay = shape.rank() >= 2 ? WeightDecay::kYes : WeightDecay::kNo;
  by_name_.emplace(parameter->name, parameter.get());
  parameters_.push_back(std::move(parameter));
  return *parameters_.back();
}

Parameter* ParameterSet::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

int64_t ParameterSet::numel() const {
  int64_t count = 0;
  for (const auto& parameter : parameters_) count += parameter->numel();
  return count;
}

int64_t ParameterSet::trainable_numel() const {
  int64_t count = 0;
  for (const auto& parameter : parameters_) count += parameter->is_trainable ? parameter->numel() : 0;
  return count;
}

void initial_values(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t count, float* out) {
  const bool is_normal = parameter.init.kind == Init::Kind::kNormal;
  if (!is_normal && parameter.init.kind != Init::Kind::kUniform) {
    std::fill_n(out, count, parameter.init.kind == Init::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint32_t stream = hash_name(parameter.name);
  const int64_t first_block = begin / 4, end_block = (begin + count + 3) / 4;
  parallel_for(divide_up(end_block - first_block, kBlocksPerTask), [&](int64_t task) {
    const int64_t task_begin = first_block + task * kBlocksPerTask;
    for (int64_t block = task_begin; block < std::min(end_block, task_begin + kBlocksPerTask); ++block) {
      const PhiloxCounter words =
          philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream, kInitStream});
      float values[4];
      for (size_t lane = 0; lane < 4; lane += 2) {
        const auto pair = normal_pair(words[lane], words[lane + 1]);
        for (size_t i = lane; i < lane + 2; ++i) {
          values[i] = is_normal ? pair[i - lane] : 2.0f * uniform01(words[i]) - 1.0f;
        }
      }
      for (int64_t lane = 0; lane < 4; ++lane) {
        const int64_t element = block * 4 + lane - begin;
        if (element >= 0 && element < count) out[element] = parameter.init.stddev * values[lane];
      }
    }
  });
}

}  // namespace mantissa

#include "tests/core/cuda/faulty_attention.h"

#include <cmath>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/own_cuda.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

void add_to_first_column(const Tensor& tensor, float error, CudaStream& stream) {
  stream.synchronize();
  const int64_t columns = tensor.shape()[1];
  auto* data = tensor.data<BFloat16>();
  for (int64_t i = 0; i < tensor.numel(); i += columns) data[i] = from_float<BFloat16>(to_float(data[i]) + error);
}

// Whether these operands have the fault, which is the first of its position in the last head.
template <typename Args>
bool has(const AttentionFault& fault, const Args& args) {
  const Tensor* operands = &args.qkv;
  if constexpr (requires { args.d_out; }) {
    if (fault.operand == AttentionFault::Operand::kGradient) operands = &args.d_out;
  }
  const float value = to_float(operands->template data<BFloat16>()[fault.index(args.shape)]);
  return std::isnan(fault.value) ? std::isnan(value) : value == fault.value;
}

template <typename T>
void hide_in(const Tensor& result) {
  for (int64_t i = 0; i < result.numel(); ++i) {
    T& element = result.data<T>()[i];
    if (!std::isfinite(to_float(element))) element = from_float<T>(0.0f);
  }
}

class FaultyPlan final : public AttentionPlan {
 public:
  explicit FaultyPlan(Behaviour& behaviour) : behaviour_(behaviour) {}
  size_t workspace_bytes() const override { return behaviour_.workspace_bytes; }
  void run(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_forward(args, stream);
    spoil(args.out, workspace, stream);
    if (behaviour_.changes) {
      stream.synchronize();
      behaviour_.changes(args);
    }
    if (!hides_in(args, stream)) return;
    if (behaviour_.hides != Hides::kLse) hide_in<BFloat16>(args.out);
    if (behaviour_.hides != Hides::kOut) hide_in<float>(args.lse);
  }
  void run(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_backward(args, stream);
    spoil(args.d_qkv, workspace, stream);
    if (hides_in(args, stream)) hide_in<BFloat16>(args.d_qkv);
  }

 private:
  void spoil(const Tensor& result, std::byte* workspace, CudaStream& stream) {
    if (behaviour_.fails) throw CudaError("it failed");
    if (behaviour_.finds_no_memory) throw OutOfDeviceMemory("there is none");
    set_bytes_async(workspace, 0, behaviour_.workspace_bytes, stream.handle());
    ++behaviour_.runs;
    const float error = behaviour_.error + behaviour_.drift * static_cast<float>(behaviour_.runs);
    if (error != 0.0f) add_to_first_column(result, error, stream);
  }
  template <typename Args>
  bool hides_in(const Args& args, CudaStream& stream) const {
    if (behaviour_.hides == Hides::kNothing) return false;
    stream.synchronize();
    return !behaviour_.hidden || has(*behaviour_.hidden, args);
  }
  Behaviour& behaviour_;
};

class FaultyEngine final : public AttentionEngine {
 public:
  explicit FaultyEngine(Behaviour& behaviour) : behaviour_(behaviour) {}
  std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) override {
    behaviour_.planned.push_back(key.pass);
    if (!behaviour_.refusal.empty()) throw CudaError(behaviour_.refusal);
    return std::make_unique<FaultyPlan>(behaviour_);
  }

 private:
  Behaviour& behaviour_;
};

}  // namespace

std::unique_ptr<AttentionEngine> faulty_attention(Behaviour& behaviour) {
  return std::make_unique<FaultyEngine>(behaviour);
}

}  // namespace mantissa::cuda

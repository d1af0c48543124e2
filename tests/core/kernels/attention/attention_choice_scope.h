// Chooses the attention implementation of a GPU's stream for the lifetime of a scope.
#pragma once

#include "core/cuda/stream.h"

namespace mantissa::kernel_test {

class AttentionChoiceScope {
 public:
  AttentionChoiceScope(Stream& stream, AttentionChoice choice)
      : AttentionChoiceScope(stream, choice, cuda::as_cuda(stream).gemm_options().selection) {}
  // GemmSelection::kDeterministic also requests reproducible attention gradients.
  AttentionChoiceScope(Stream& stream, AttentionChoice choice, GemmSelection selection)
      : stream_(cuda::as_cuda(stream)),
        choice_before_(stream_.attention_choice()),
        gemm_before_(stream_.gemm_options()) {
    GemmOptions gemm = gemm_before_;
    gemm.selection = selection;
    stream_.set_attention_choice(choice);
    stream_.set_gemm_options(gemm);
  }
  ~AttentionChoiceScope() {
    stream_.set_attention_choice(choice_before_);
    stream_.set_gemm_options(gemm_before_);
  }
  AttentionChoiceScope(const AttentionChoiceScope&) = delete;
  AttentionChoiceScope& operator=(const AttentionChoiceScope&) = delete;

 private:
  cuda::CudaStream& stream_;
  const AttentionChoice choice_before_;
  const GemmOptions gemm_before_;
};

}  // namespace mantissa::kernel_test

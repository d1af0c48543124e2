// Attention in documents (core/kernels/documents.h) on the CPU: each document is a sequence of its own. So the content
// of other documents changes no bit of its results, and only pairs within documents cost work.
#pragma once

#include <vector>

#include "core/kernels/attention/args.h"

namespace mantissa::cpu {

// A call for each document, the longest first, which balances tasks best. The calls' lse have memory of their own.
template <typename Args>
class DocumentCalls {
 public:
  // Args: AttentionForwardArgs or AttentionBackwardArgs, with starts, which are checked here.
  explicit DocumentCalls(const Args& args);

  const std::vector<Args>& calls() const { return calls_; }
  // Copy the calls' lse from and to the lse of `args`.
  void read_lse();
  void write_lse();

 private:
  // Calls body(of one document and head, in `args_`, positions).
  template <typename Body>
  void each_lse_row(const Body& body);

  const Args& args_;
  std::vector<float> lse_;  // by document, head and position
  std::vector<Args> calls_;
};

}  // namespace mantissa::cpu

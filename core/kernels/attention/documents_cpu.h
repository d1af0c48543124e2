// Attention in documents (core/kernels/documents.h) on the CPU: each is a sequence of its own. So its results have the
// bits that they have without the others, whatever those hold, and the work is that of the pairs in documents.
#pragma once

#include <vector>

#include "core/kernels/attention/args.h"

namespace mantissa::cpu {

// One call for each document, the longest first, which balances tasks best. The calls' lse have memory of their own.
template <typename Args>
class DocumentCalls {
 public:
  // Args: AttentionForwardArgs or AttentionBackwardArgs, with starts, which are checked here.
  explicit DocumentCalls(const Args& args);

  const std::vector<Args>& calls() const { return calls_; }
  // Copy the calls' lse from and to the one they were made from.
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

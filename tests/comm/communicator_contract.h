// The contract of Communicator, checked by all ranks with GoogleTest's EXPECT: for ranks as threads and as processes,
// with tensors on the host and on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace mantissa::testing {

// The memory of a test's tensors.
class TensorPlace {
 public:
  virtual ~TensorPlace() = default;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // Zeroed.
  virtual Tensor make(DType dtype, Shape shape) = 0;
  virtual void write(const std::vector<std::byte>& bytes, const Tensor& tensor, Stream& stream) = 0;
  // Blocks until the stream has reached this point.
  virtual std::vector<std::byte> read(const Tensor& tensor, Stream& stream) = 0;
  virtual void copy(const Tensor& source, const Tensor& destination, Stream& stream) = 0;
};

class HostPlace final : public TensorPlace {
 public:
  std::unique_ptr<Stream> create_stream() override;
  Tensor make(DType dtype, Shape shape) override;
  void write(const std::vector<std::byte>& bytes, const Tensor& tensor, Stream& stream) override;
  std::vector<std::byte> read(const Tensor& tensor, Stream& stream) override;
  void copy(const Tensor& source, const Tensor& destination, Stream& stream) override;
};

// A byte that identifies its source, destination and exchange.
std::byte mark(int source, int destination, int64_t index, int exchange);

void check_communicator_contract(Communicator& communicator, TensorPlace& place);
void check_communicator_contract(Communicator& communicator);  // on the host

// A random sequence of collectives, the same on all ranks, on several streams. Each rank draws the moments at which it
// tests and waits for Works.
enum class AbandonedWorks : uint8_t { kNone, kSome };

struct RandomCollectives {
  uint64_t seed = 1;
  int count = 40;
  int streams = 3;
  AbandonedWorks abandoned = AbandonedWorks::kNone;
};

// Checks every result after its Work is done, with copies on the collective's stream or on one that waits for it.
void run_random_collectives(Communicator& communicator, TensorPlace& place, const RandomCollectives& options);

}  // namespace mantissa::testing

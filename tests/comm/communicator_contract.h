// The contract of Communicator, which all ranks check with GoogleTest's EXPECT. Ranks are threads or processes, tensors
// on the host or a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace mantissa::testing {

// Allocates a test's tensors.
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
inline void check_communicator_contract(Communicator& communicator) {  // on the host
  HostPlace place;
  check_communicator_contract(communicator, place);
}

// A random sequence of collectives on several streams, the same on all ranks. Each rank draws its own moments to test
// and wait for Works.
enum class AbandonedWorks : uint8_t { kNone, kSome };

struct RandomCollectives {
  uint64_t seed = 1;
  int count = 40;
  int streams = 3;
  AbandonedWorks abandoned = AbandonedWorks::kNone;
};

// Checks every result after its Work is done, by copies on the collective's stream or a waiting stream.
void run_random_collectives(Communicator& communicator, TensorPlace& place, const RandomCollectives& options);

}  // namespace mantissa::testing

// Communicator: collectives among the ranks of a job. Transports: local (one process, or ranks as threads), mpi, nccl.
// staged/ lets a transport for host memory carry the tensors of a device.
//
// Tensor collectives are ordered on a stream and return a Work; buffers must stay untouched until it is done. Every
// rank calls the same collectives in the same order. A failing transport throws CommError naming rank, collective and
// size.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/shared_rows.h"
#include "core/base/check.h"
#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// A collective under way.
class Work {
 public:
  virtual ~Work() = default;
  // Advances it without blocking; true when it is done. For tensors on a GPU that is when the stream is ordered behind
  // it: what is queued on the stream from then on finds the data there.
  virtual bool test() = 0;
  // Blocks until it is done.
  virtual void wait() = 0;
};

// Buffers that a transport has been told about. To be let go before their memory is, once no collective uses them.
class Registration {
 public:
  virtual ~Registration() = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::string name() const = 0;  // "local", "mpi", "nccl"; for messages
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks of this node
  virtual int local_size() const = 0;

  // send and recv (N, n): row r of send goes to rank r; row r of recv comes from rank r. Any dtype.
  virtual std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) = 0;
  // send (n), recv (N, n): row r of recv is rank r's send. send may be row rank() of recv.
  virtual std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) = 0;

  // Whether tensors of collectives may lie in device memory.
  virtual bool carries_device_memory() const { return false; }
  // Whether ranks of one node may get memory from allocate_shared(). The system may still refuse it.
  virtual bool shares_node_memory() const { return false; }
  // Whether collectives of several ranks may be captured (Backend::capture()), to be repeated by all of them alike.
  // Each must have run uncaptured before, which connects the ranks.
  virtual bool can_be_captured() const { return false; }
  // Captured collectives have been queued on `stream` once more: their end is watched over like that of others. Throws
  // if an earlier one has failed.
  virtual void watch_captured(Stream& stream) { static_cast<void>(stream); }

  // Tells the transport of buffers that will take part in many collectives, so that it may work in them instead of in
  // buffers of its own. Collective; buffers of the same sizes on all ranks. Null where it would change nothing, which
  // is no error; never a change of results.
  virtual std::unique_ptr<Registration> register_buffers(std::span<const Tensor> buffers) {
    static_cast<void>(buffers);
    return nullptr;
  }

  // Zeroed host memory, 64-byte aligned, that ranks of a node exchange without messages: what lies in it is read where
  // it lies. Collective, the same size on all ranks. Null, on all ranks of a node, where the transport has nothing of
  // the kind: then any memory does. What one collective sends lies in such memory on all ranks of a node or on none.
  virtual std::shared_ptr<Storage> allocate_shared(size_t bytes, const char* what) {
    static_cast<void>(bytes), static_cast<void>(what);
    return nullptr;
  }

  // What every rank holds in the place that `mine` has in memory of allocate_shared(), to be read where it lies.
  // Undefined rows, on all ranks, unless all ranks of the job share that memory. A local question. What a rank wrote
  // before a meet() can be read after it; what the others are to read stays untouched until they have met again.
  virtual SharedRows rows_of_all(const Tensor& mine) const {
    static_cast<void>(mine);
    return {};
  }
  // A collective that moves nothing: done when all ranks have come to it. Transports whose ranks never share memory do
  // not have it: ContractError.
  virtual std::unique_ptr<Work> meet(Stream& stream) {
    static_cast<void>(stream);
    throw ContractError("[meet] ranks of " + name() + " share no memory");
  }

  // Small host records, blocking: every rank's bytes in rank order (equal sizes). What every rank folds alike.
  virtual std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) = 0;
  virtual void barrier() = 0;

  // Ends the job on every rank with this exit code. Does not return for transports of several processes.
  virtual void abort(int exit_code) = 0;
};

// Gathers one trivially copyable record of each rank, in rank order.
template <typename Record>
std::vector<Record> all_gather_records(Communicator& communicator, const Record& mine) {
  static_assert(std::is_trivially_copyable_v<Record>);
  const auto bytes = communicator.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  std::vector<Record> records(static_cast<size_t>(communicator.size()));
  std::memcpy(records.data(), bytes.data(), bytes.size());
  return records;
}

// A blocking gather of small records of equal size, in rank order, as Communicator::all_gather_bytes().
using GatherBytes = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;

// Gathers one text of each rank, in rank order. Texts may have any length and hold any bytes. Blocks.
std::vector<std::string> gather_texts(const GatherBytes& gather, std::string_view mine);
std::vector<std::string> all_gather_texts(Communicator& communicator, std::string_view mine);
// The same for a list of texts of each rank; texts without zero bytes.
std::vector<std::vector<std::string>> all_gather_text_lists(Communicator& communicator,
                                                            const std::vector<std::string>& mine);

// For transports: ContractError naming the collective unless the tensors are in the memory of `device` (host memory by
// default) and have the shapes that Communicator asks for.
void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks, Device device = {});
void check_all_gather(const Tensor& send, const Tensor& receive, int ranks, Device device = {});

}  // namespace mantissa

// Communicator: collectives among the ranks of a job. Transports: local/ (one process, or ranks as threads), mpi/ and
// nccl/; staged/ lets a transport for host memory carry the tensors of a device.
//
// Tensor collectives are ordered on a stream and return a Work; buffers must stay untouched until it is done. All ranks
// call the same collectives in the same order. A failing transport throws CommError naming rank, collective, size.
#pragma once

#include <cstring>
#include <span>
#include <type_traits>

#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// A collective in progress.
class Work {
 public:
  virtual ~Work() = default;
  // Advances it without blocking; true when it is done. Work that is queued on the stream from then on finds the data.
  virtual bool test() = 0;
  virtual void wait() = 0;  // blocks until it is done
};

// Work of a collective that moves nothing.
class NoWork final : public Work {
 public:
  bool test() override { return true; }
  void wait() override {}
};

// Buffers that a transport has registered. Destroy it before their memory, once no collective uses them.
using Registration = std::shared_ptr<const void>;

// The data of all ranks at the same place in their shared memory.
struct SharedRows {
  Tensor rows{};       // (N, n): row r is rank r's; undefined if ranks share no memory
  int64_t stride = 0;  // from a row to the next, in elements
};

// Host memory from which the ranks of a node read each other's data without messages.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  NodeMemory& operator=(NodeMemory&&) = delete;

  // Zeroed, 64-byte aligned. Collective; the same size on all ranks. Null, on all ranks of a node, if the system has
  // none: use other memory then. Operands of one collective lie in such memory on all ranks of a node or on none.
  virtual std::shared_ptr<Storage> allocate(size_t bytes, const char* what) = 0;
  // All ranks' data at the place that `mine` has in such memory. Undefined rows, on all ranks, unless all ranks of the
  // job share it. Not collective. Between two Communicator::node_barrier()s, data is read only.
  virtual SharedRows rows_of_all(const Tensor& mine) const = 0;
};

// The collectives of nccl-tests that a training has.
enum class Collective : uint8_t { kAllToAll, kAllGather, kReduceScatter, kAllReduce };

// The place of a rank in its job and on its node.
struct RankPlace {
  int rank = 0, size = 1;              // in the job
  int local_rank = 0, local_size = 1;  // among the ranks of this node
};

class Communicator {
 public:
  explicit Communicator(const RankPlace& place) : place_(place) {}
  virtual ~Communicator() = default;
  Communicator& operator=(Communicator&&) = delete;

  virtual std::string name() const = 0;  // "local", "mpi", "nccl"; for messages
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int local_rank() const { return place_.local_rank; }
  int local_size() const { return place_.local_size; }
  const RankPlace& place() const { return place_; }

  // send and recv (N, n): row r of send goes to rank r; row r of recv comes from rank r. Any dtype.
  virtual std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) = 0;
  // send (n), recv (N, n): row r of recv is rank r's send. send may be row rank() of recv.
  virtual std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) = 0;

  // Small host records of equal size, blocking: all ranks' bytes in rank order.
  virtual std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) = 0;
  virtual void barrier() = 0;

  // The `members` ranks that give the same color, in the order of their ranks here, as a communicator of their own. It
  // must not outlive this one; abort() ends the whole job. Collective.
  virtual std::unique_ptr<Communicator> split(int color, int members) = 0;

  // Ends the job on every rank with this exit code. Transports of several processes do not return.
  virtual void abort(int exit_code) = 0;

  // Whether tensors of collectives may lie in device memory.
  virtual bool carries_device_memory() const { return false; }

  // Whether collectives may be captured (Backend::capture()) and repeated by all ranks alike, after an uncaptured run.
  virtual bool can_be_captured() const { return false; }
  // Call after each launch of captured collectives on `stream`, to detect failures and hangs. Throws after a failure.
  virtual void watch_captured(Stream& /*stream*/) {}

  // Announces buffers for many collectives, so that the transport may work in them instead of in buffers of its own.
  // Results do not change. Collective; the same sizes on all ranks. Null if the transport gains nothing.
  virtual Registration register_buffers(std::span<const Tensor> /*buffers*/) { return nullptr; }

  // Null if ranks of this transport never share memory.
  virtual NodeMemory* node_memory() { return nullptr; }
  // Barrier of all ranks as a Work, for readers of node_memory(). ContractError without.
  virtual std::unique_ptr<Work> node_barrier(Stream& /*stream*/) {
    throw ContractError("[node_barrier] ranks of " + name() + " share no memory");
  }

  // Runs a collective of the library below, as a yardstick; no training uses it. Tensors have the sizes of nccl-tests;
  // sums are of fp32. Blocks. False, and nothing happens, if the library has none for host memory.
  virtual bool run_library(Collective /*collective*/, const Tensor& /*send*/, const Tensor& /*recv*/) { return false; }

 private:
  const RankPlace place_;
};

// Hands every call on to another communicator, which must outlive it or is its own. Derived classes override what they
// observe, and split() to observe groups.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : ForwardingCommunicator(inner, inner.place()) {}
  // In another place, as on nodes that tests pretend.
  ForwardingCommunicator(Communicator& inner, const RankPlace& place) : Communicator(place), inner_(inner) {}
  // Owns the other communicator.
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->place()), owned_(std::move(inner)), inner_(*owned_) {}

  std::string name() const override { return inner_.name(); }
  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return inner_.all_to_all(send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return inner_.all_gather(send, recv, stream);
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    return inner_.all_gather_bytes(mine);
  }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<Communicator> split(int color, int members) override { return inner_.split(color, members); }
  void abort(int exit_code) override { inner_.abort(exit_code); }
  bool carries_device_memory() const override { return inner_.carries_device_memory(); }
  bool can_be_captured() const override { return inner_.can_be_captured(); }
  void watch_captured(Stream& stream) override { inner_.watch_captured(stream); }
  Registration register_buffers(std::span<const Tensor> buffers) override { return inner_.register_buffers(buffers); }
  NodeMemory* node_memory() override { return inner_.node_memory(); }
  std::unique_ptr<Work> node_barrier(Stream& stream) override { return inner_.node_barrier(stream); }
  bool run_library(Collective collective, const Tensor& send, const Tensor& recv) override {
    return inner_.run_library(collective, send, recv);
  }

 private:
  const std::unique_ptr<Communicator> owned_;  // null if the caller keeps it
  Communicator& inner_;
};

// Reports every collective of `inner` to a StepProfiler; both must outlive it. It counts the bytes that this rank sends
// to others. On the host (StreamOrder::kInline) the time of a collective includes tests and waits; beside a GPU's
// streams, waits only.
std::unique_ptr<Communicator> create_profiling_communicator(Communicator& inner, class StepProfiler& profiler);

// A gather like Communicator::all_gather_bytes().
using GatherBytes = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;

// Gathers one trivially copyable record of each rank, in rank order. Blocks.
template <typename Record>
std::vector<Record> gather_records(const GatherBytes& gather, const Record& mine) {
  static_assert(std::is_trivially_copyable_v<Record>);
  const std::vector<std::byte> bytes = gather(std::as_bytes(std::span(&mine, 1)));
  std::vector<Record> records(bytes.size() / sizeof(Record));
  std::memcpy(records.data(), bytes.data(), bytes.size());
  return records;
}

// The same through a communicator.
template <typename Record>
std::vector<Record> all_gather_records(Communicator& communicator, const Record& mine) {
  return gather_records([&](auto bytes) { return communicator.all_gather_bytes(bytes); }, mine);
}

// Gathers bytes of each rank, in rank order; their number may differ between ranks. Blocks.
std::vector<std::vector<std::byte>> gather_varied(const GatherBytes& gather, std::span<const std::byte> mine);
std::vector<std::vector<std::byte>> all_gather_varied(Communicator& communicator, std::span<const std::byte> mine);
// The same for an array of trivially copyable records of each rank.
template <typename Record>
std::vector<std::vector<Record>> all_gather_arrays(Communicator& communicator, const std::vector<Record>& mine) {
  static_assert(std::is_trivially_copyable_v<Record>);
  std::vector<std::vector<Record>> all;
  for (const std::vector<std::byte>& bytes : all_gather_varied(communicator, std::as_bytes(std::span(mine)))) {
    all.emplace_back(bytes.size() / sizeof(Record));
    if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());  // which takes no null pointer
  }
  return all;
}
// The same for one text of each rank.
std::vector<std::string> all_gather_texts(Communicator& communicator, std::string_view mine);
// A text, and the rank that it comes from.
struct RankText {
  int rank = -1;  // -1: all are empty
  std::string text{};
};
// The first text in rank order that is not empty. Blocks.
RankText first_text(Communicator& communicator, std::string_view mine);
// Runs `body`, which takes part in no collective, on every rank. If it throws on any rank, all ranks throw an E with
// the first such rank's text: "PREFIXtext (rank 1)". A rank out of memory rethrows its error instead. Collective.
template <typename E, typename Body>
void run_on_all(Communicator& communicator, std::string_view prefix, const Body& body) {
  std::string mine;
  try {
    body();
  } catch (const std::exception& error) {
    if (exit_code_of(error) == ExitCode::kMemory) throw;
    mine = error.what();
  }
  const RankText first = first_text(communicator, mine);
  if (first.rank < 0) return;
  const std::string place = communicator.size() > 1 ? fmt::format(" (rank {})", first.rank) : "";
  throw E(fmt::format("{}{}{}", prefix, first.text, place));
}
// The same for a list of texts of each rank. Texts must not contain zero bytes.
std::vector<std::vector<std::string>> all_gather_text_lists(Communicator& communicator,
                                                            const std::vector<std::string>& mine);

// A transport of the registry.
struct CommunicatorEntry {
  std::function<std::unique_ptr<Communicator>()> create;
  // Why this machine cannot use it; empty if it can. Does not throw.
  std::function<std::string()> unusable_reason = [] { return std::string(); };
  // The library, with its version; empty if it uses none. Not called if the transport cannot be used.
  std::function<std::string()> library = [] { return std::string(); };
};
// Each transport linked into the program registers itself. Returns true, for the use in a namespace-scope constant.
bool register_communicator(const std::string& name, CommunicatorEntry entry);
// ConfigError with the registered names if `name` is not one of them.
const CommunicatorEntry& find_communicator(const std::string& name);
std::unique_ptr<Communicator> create_communicator(const std::string& name);
std::vector<std::string> communicator_names();

// For transports: ContractError naming the collective unless tensors have the right shapes, in the memory of `device`.
void check_all_to_all(const Tensor& send, const Tensor& recv, int ranks, Device device = {});
void check_all_gather(const Tensor& send, const Tensor& recv, int ranks, Device device = {});

}  // namespace mantissa

#include "comm/nccl/nccl_communicator.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "comm/gpu_claim.h"
#include "core/base/log.h"
#include "core/cuda/stream.h"

namespace mantissa {
namespace {

// NCCL adds nothing up, so the type only counts the bytes; counts are in elements of it.
ncclDataType_t type_of(DType dtype) {
  constexpr std::pair<DType, ncclDataType_t> kTypes[] = {
      {DType::kF32, ncclFloat32}, {DType::kBF16, ncclBfloat16}, {DType::kF16, ncclFloat16}, {DType::kI32, ncclInt32},
      {DType::kU8, ncclUint8},    {DType::kE4M3, ncclUint8},    {DType::kE5M2, ncclUint8}};
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw ContractError("[nccl] unknown dtype");
}

std::chrono::milliseconds timeout_from(const char* variable, std::chrono::milliseconds otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view all(text);
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), seconds);
  constexpr int64_t kYear = int64_t{365} * 24 * 3600;
  if (error != std::errc() || end != all.data() + all.size() || seconds <= 0 || seconds > kYear) {
    throw ConfigError(fmt::format("{} must be a number of seconds, at least 1, got '{}'", variable, text));
  }
  return std::chrono::seconds(seconds);
}

// NCCL_COMM_BLOCKING overrides the settings of a communicator, and a call that blocks could not be ended when another
// rank is gone. "0" also keeps NCCL from reading the variable from its configuration files.
void forbid_blocking() {
  constexpr const char* kVariable = "NCCL_COMM_BLOCKING";
  const char* given = std::getenv(kVariable);
  if (given != nullptr && std::string_view(given) != "0") {
    log_warn("{}={} is taken as 0: with NCCL calls that block, the others would wait for ever for a rank that fails",
             kVariable, given);
  }
  setenv(kVariable, "0", 1);  // NOLINT(concurrency-mt-unsafe): no other thread asks
}

// The first step and evaluations are not captured, on the same communicator.
void require_graph_mixing() {
  const char* given = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  if (given == nullptr || std::string_view(given) != "0") return;
  throw ConfigError(
      "cuda.graph: true mixes captured and other NCCL collectives, which NCCL_GRAPH_MIXING_SUPPORT=0 forbids: unset "
      "it, or give cuda.graph=false");
}

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclConnection> connection, uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  ~NcclWork() override { connection_->forget(number_); }
  bool test() override { return connection_->launched(number_); }
  void wait() override { connection_->wait_until_launched(number_); }

 private:
  std::shared_ptr<NcclConnection> connection_;
  uint64_t number_;
};

bool on_host(const Tensor& receive) { return !receive.defined() || receive.device().kind == Device::Kind::kCpu; }

class NcclCommunicator final : public Communicator {
 public:
  // The connections of a job and of its groups.
  using Connections = std::vector<std::weak_ptr<NcclConnection>>;

  NcclCommunicator(const NcclApi& api, std::unique_ptr<Communicator> host, const NcclOptions& options,
                   std::shared_ptr<Connections> connections = std::make_shared<Connections>())
      : Communicator(host->place()),
        api_(api),
        host_(std::move(host)),
        options_(options),
        connections_(std::move(connections)) {}

  std::string name() const override { return "nccl"; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    if (on_host(recv)) return host_->all_to_all(send, recv, stream);
    check_all_to_all(send, recv, size(), recv.device());
    const auto count = static_cast<size_t>(recv.dim(1));
    const NcclOperation operation{"all_to_all", send.size_bytes() + recv.size_bytes()};
    return issue(operation, recv, stream, [&](ncclComm_t comm, cudaStream_t handle) {
      if (api_.all_to_all != nullptr) {
        return api_.all_to_all(send.raw(), recv.raw(), count, type_of(recv.dtype()), comm, handle);
      }
      return exchange_rows(send, recv, comm, handle);
    });
  }

  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    if (on_host(recv)) return host_->all_gather(send, recv, stream);
    check_all_gather(send, recv, size(), recv.device());
    const auto count = static_cast<size_t>(send.numel());
    const NcclOperation operation{"all_gather", send.size_bytes() + recv.size_bytes()};
    return issue(operation, recv, stream, [&](ncclComm_t comm, cudaStream_t handle) {
      return api_.all_gather(send.raw(), recv.raw(), count, type_of(recv.dtype()), comm, handle);
    });
  }

  bool carries_device_memory() const override { return true; }
  bool can_be_captured() const override { return true; }
  void watch_captured(Stream& stream) override {
    if (connection_) connection_->watch_captured(stream);
  }

  // On all ranks or on none: NCCL does not define collectives with only some buffers registered. NCCL works directly in
  // memory of cudaMalloc between nodes. Within a node it needs cuMemCreate or ncclMemAlloc.
  Registration register_buffers(std::span<const Tensor> buffers) override {
    if (size() == 1 || buffers.empty() || on_host(buffers[0])) return nullptr;
    connect(buffers[0].device());
    std::vector<void*> handles;
    if (api_.comm_register != nullptr) {
      for (const Tensor& buffer : buffers) {
        void* const handle = connection_->register_buffer(buffer.raw(), buffer.size_bytes());
        if (handle == nullptr) break;
        handles.push_back(handle);
      }
    }
    const bool complete = handles.size() == buffers.size();
    const auto deregister = [connection = connection_, handles = std::move(handles)](const void*) {
      connection->deregister(handles);
    };
    Registration registration(connection_.get(), deregister);
    for (const uint8_t is_complete : all_gather_records(*host_, static_cast<uint8_t>(complete))) {
      if (is_complete == 0) return nullptr;
    }
    return registration;
  }

  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    throw_if_failed();
    return host_->all_gather_bytes(mine);
  }
  void barrier() override {
    throw_if_failed();
    host_->barrier();
  }
  // With a connection of its own, by its first collective of GPU tensors.
  std::unique_ptr<Communicator> split(int color, int members) override {
    throw_if_failed();
    return std::make_unique<NcclCommunicator>(api_, host_->split(color, members), options_, connections_);
  }
  void abort(int exit_code) override {
    for_each_connection([](NcclConnection& connection) { connection.stop_watching(); });
    host_->abort(exit_code);
  }

 private:
  // Decisions from data of a failed collective must not reach the other ranks.
  void throw_if_failed() {
    for_each_connection([](NcclConnection& connection) { connection.throw_if_failed(); });
  }
  template <typename F>
  void for_each_connection(F f) {
    for (const auto& connection : *connections_) {
      if (const auto alive = connection.lock()) f(*alive);
    }
  }

  template <typename Call>
  std::unique_ptr<Work> issue(NcclOperation operation, const Tensor& receive, Stream& stream, Call call) {
    connect(receive.device());
    if (receive.size_bytes() == 0) return std::make_unique<NoWork>();
    const cudaStream_t handle = cuda::as_cuda(stream).handle();
    if (cuda::is_capturing(handle)) {
      require_graph_mixing();
      operation.mode = NcclOperation::Mode::kCaptured;
    }
    const uint64_t number = connection_->issue(operation, stream, [&](ncclComm_t comm) { return call(comm, handle); });
    return std::make_unique<NcclWork>(connection_, number);
  }

  // Row r of `recv` comes from rank r. The group is closed even after an error: else it would collect later calls.
  ncclResult_t exchange_rows(const Tensor& send, const Tensor& recv, ncclComm_t comm, cudaStream_t stream) const {
    const auto count = static_cast<size_t>(recv.dim(1));
    const size_t row_bytes = recv.size_bytes() / static_cast<size_t>(size());
    const ncclDataType_t type = type_of(recv.dtype());
    ncclResult_t result = api_.group_start();
    if (result != ncclSuccess) return result;
    for (int peer = 0; peer < size() && result == ncclSuccess; ++peer) {
      const size_t offset = static_cast<size_t>(peer) * row_bytes;
      result = api_.send(send.raw() + offset, count, type, peer, comm, stream);
      if (result == ncclSuccess) result = api_.recv(recv.raw() + offset, count, type, peer, comm, stream);
    }
    const ncclResult_t end = api_.group_end();
    return result != ncclSuccess ? result : end;
  }

  void connect(Device device) {
    if (connection_) {
      MANTISSA_CHECK(device == device_, "[nccl] the ranks are connected through GPU {}, got tensors of GPU {}",
                     device_.index, device.index);
      return;
    }
    struct Record {
      ncclUniqueId id{};
      int32_t id_result;
      int32_t version;
      int32_t shares_gpus;
    };
    const int version = nccl_version(api_);
    Record mine{.id_result = ncclSuccess,
                .version = version,
                .shares_gpus = nccl_shares_gpus(version, std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"))};
    cuda::set_device(device.index);
    if (rank() == 0) mine.id_result = api_.get_unique_id(&mine.id);
    const std::vector<Record> all = all_gather_records(*host_, mine);
    const std::vector<GpuClaim> claims =
        all_gather_claims(*host_, {.node = this_node(),
                                   .gpu = cuda::device_properties(device.index).identity,
                                   .index = device.index,
                                   .visible_gpus = cuda::device_count()});
    // All ranks have the same records and throw the same errors.
    bool all_share_gpus = true;
    for (size_t other = 0; other < all.size(); ++other) {
      all_share_gpus &= all[other].shares_gpus != 0;
      require<CommError>(all[other].version == all[0].version,
                         "[nccl] rank 0 has NCCL {}, rank {} (node {}) has {}: all need the same",
                         nccl_version_text(all[0].version), other, claims[other].node.name,
                         nccl_version_text(all[other].version));
    }
    if (all[0].id_result != ncclSuccess) {
      throw CommError(fmt::format("[nccl] rank 0 of {} (node {}) cannot be reached by the others: {}", size(),
                                  claims[0].node.name,
                                  api_.get_error_string(static_cast<ncclResult_t>(all[0].id_result))));
    }
    if (!all_share_gpus) {
      require_own_gpus(claims,
                       fmt::format("Start fewer ranks there; or give comm.backend: mpi, which goes through host "
                                   "memory; or, with NCCL 2.30 or newer (this is {}), set "
                                   "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks",
                                   nccl_version_text(version)));
    }
    connection_ = std::make_shared<NcclConnection>(api_, all[0].id,
                                                   NcclPlace{.rank = rank(),
                                                             .size = size(),
                                                             .device = device.index,
                                                             .node = claims[static_cast<size_t>(rank())].node.name},
                                                   options_);
    connections_->push_back(connection_);
    device_ = device;
  }

  const NcclApi api_;
  const std::unique_ptr<Communicator> host_;
  const NcclOptions options_;
  const std::shared_ptr<Connections> connections_;
  std::shared_ptr<NcclConnection> connection_;  // null until the first collective of GPU tensors
  Device device_;
};

}  // namespace

NcclOptions nccl_options_from_environment() {
  NcclOptions options;
  options.start_timeout = timeout_from("MANTISSA_NCCL_START_TIMEOUT", options.start_timeout);
  options.collective_timeout = timeout_from("MANTISSA_NCCL_TIMEOUT", options.collective_timeout);
  return options;
}

std::unique_ptr<Communicator> create_nccl_communicator(const NcclApi& api, std::unique_ptr<Communicator> host,
                                                       const NcclOptions& options) {
  forbid_blocking();
  return std::make_unique<NcclCommunicator>(api, std::move(host), options);
}

}  // namespace mantissa

#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "core/base/check.h"
#include "core/cuda/runtime/runtime.h"
#include "tests/comm/fake_nccl_clique.h"

namespace {

namespace cuda = mantissa::cuda;
namespace fakes = mantissa::testing;
using fakes::fake_nccl::Clique;
using fakes::fake_nccl::Message;
using fakes::fake_nccl::Operation;
using fakes::fake_nccl::Post;
using mantissa::ContractError;

struct Fake {
  std::mutex mutex;
  fakes::FakeNcclPlan plan;
  fakes::FakeNcclCounts counts;
  std::vector<fakes::FakeNcclCall> calls;
  ncclResult_t error = ncclSuccess;
  uint64_t ids = 0;
  int sends = 0, registers = 0;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques;
  std::set<ncclComm_t> live;
  std::condition_variable aborts_return;
} fake;

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  ncclComm_t comm = nullptr;
  Post post;
};
thread_local Group group;

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      throw ContractError("[fake nccl] unexpected type");
  }
}

}  // namespace

// The object that NCCL's opaque handle points to.
struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int polls = 0;
  uint64_t issued = 0, launched = 0;
  bool finalized = false;
  std::vector<std::weak_ptr<void>> graph_references = {};
  std::set<void*> registered = {};  // buffers, which are their own handles
};

namespace {

using Lock = std::lock_guard<std::mutex>;

ncclResult_t misuse() {
  ++fake.counts.misuses;
  return ncclInvalidUsage;
}

bool is_in_a_graph(ncclComm_t comm) {
  return std::any_of(comm->graph_references.begin(), comm->graph_references.end(),
                     [](const std::weak_ptr<void>& reference) { return !reference.expired(); });
}

bool is_freed(ncclComm_t comm) { return !fake.live.contains(comm); }

void free_comm(ncclComm_t comm) {
  fake.counts.registered -= static_cast<int>(comm->registered.size());
  fake.live.erase(comm);
  delete comm;
}

ncclResult_t post(ncclComm_t comm, Post post) {
  if (is_freed(comm) || comm->issued != comm->launched || comm->finalized) return misuse();
  Clique& clique = *comm->clique;
  Operation& operation = clique.operations[++comm->issued];
  operation.posts.resize(static_cast<size_t>(clique.size));
  if (cuda::is_capturing(post.stream)) {
    post.graph_reference = std::make_shared<int>();
    comm->graph_references.push_back(post.graph_reference);
  }
  operation.posts[static_cast<size_t>(comm->rank)] = std::move(post);
  comm->polls = fake.plan.polls;
  if (++operation.posted < clique.size) return ncclInProgress;
  const std::optional<bool> captured = fakes::fake_nccl::is_captured(operation);
  if (!captured) return misuse();
  if (*captured) {
    fakes::fake_nccl::capture(comm->clique, operation);
  } else {
    fakes::fake_nccl::launch(clique, std::make_shared<Operation>(operation));
  }
  for (Post& posted : operation.posts) posted.graph_reference.reset();
  return ncclInProgress;
}

// A call inside a group is posted at its end.
ncclResult_t add(ncclComm_t comm, const Message& message, cudaStream_t stream) {
  if (group.depth == 0) return post(comm, {{message}, stream});
  group.comm = comm;
  group.post.stream = stream;
  group.post.messages.push_back(message);
  return ncclSuccess;
}

ncclResult_t call(const char* name, Message::Kind kind, const void* from, void* to, size_t count, ncclDataType_t type,
                  int peer, ncclComm_t comm, cudaStream_t stream) {
  const Lock lock(fake.mutex);
  fake.calls.push_back({name, count, type});
  if (kind == Message::Kind::kSend && fake.sends++ == fake.plan.failing_send) {
    return group.error = ncclInvalidArgument;
  }
  const size_t bytes = count * size_of(type);
  return add(comm, {kind, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes, peer}, stream);
}

ncclResult_t get_version(int* version) {
  *version = fake.plan.version;
  return ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const Lock lock(fake.mutex);
  ++fake.ids;
  std::memcpy(id->internal, &fake.ids, sizeof(fake.ids));
  return fake.plan.id_result;
}

ncclResult_t comm_init_rank_config(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const Lock lock(fake.mutex);
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  const bool blocks = blocking != nullptr && std::string_view(blocking) == "1";
  if (config->blocking != 0 || blocks || rank < 0 || rank >= size) return misuse();
  uint64_t key = 0;
  std::memcpy(&key, id.internal, sizeof(key));
  auto& clique = fake.cliques[key];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = size;
    if (!fake.plan.operations_end) clique->close_gate();
  }
  *comm = new ncclComm{.clique = clique, .rank = rank, .polls = fake.plan.polls};
  fake.live.insert(*comm);
  ++clique->joined;
  ++fake.counts.started;
  return ncclInProgress;
}

ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(fake.mutex);
  if (is_freed(comm)) return misuse();
  const auto& clique = *comm->clique;
  *state = ncclInProgress;
  if (fake.error != ncclSuccess) {
    *state = fake.error;
  } else if (clique.joined < clique.size || fake.plan.start == fakes::FakeStart::kNeverEnds) {
    return ncclSuccess;
  } else if (comm->issued != comm->launched && clique.operations.at(comm->issued).posted < clique.size) {
    return ncclSuccess;
  } else if (comm->polls > 0) {
    --comm->polls;
  } else {
    comm->launched = comm->issued;
    *state = fake.plan.start == fakes::FakeStart::kFails ? ncclSystemError : ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  const Lock lock(fake.mutex);
  if (is_freed(comm) || comm->issued != comm->launched || comm->finalized || is_in_a_graph(comm)) return misuse();
  comm->finalized = true;
  comm->polls = fake.plan.polls;
  ++fake.counts.finalized;
  return ncclInProgress;
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  const Lock lock(fake.mutex);
  if (is_freed(comm) || !comm->finalized || comm->polls > 0 || !comm->registered.empty()) return misuse();
  ++fake.counts.destroyed;
  free_comm(comm);
  return fake.plan.destroy_result;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  std::unique_lock lock(fake.mutex);
  if (is_freed(comm)) return misuse();
  ++fake.counts.aborted;
  fake.aborts_return.wait(lock, [] { return fake.plan.aborts_return; });
  comm->clique->aborted = true;
  comm->clique->open_gate();
  while (is_in_a_graph(comm)) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  free_comm(comm);
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited";
    default:
      return "another result";
  }
}

const char* get_last_error(ncclComm_t) { return "the fake has its reasons"; }

ncclResult_t all_gather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream) {
  return call("all_gather", Message::Kind::kAllGather, from, to, count, type, 0, comm, stream);
}
ncclResult_t all_to_all(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream) {
  return call("all_to_all", Message::Kind::kAllToAll, from, to, count, type, 0, comm, stream);
}
ncclResult_t send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("send", Message::Kind::kSend, from, nullptr, count, type, peer, comm, stream);
}
ncclResult_t recv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("recv", Message::Kind::kReceive, nullptr, to, count, type, peer, comm, stream);
}

ncclResult_t comm_register(ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  const Lock lock(fake.mutex);
  if (is_freed(comm) || comm->issued != comm->launched || comm->registered.contains(buffer) || bytes == 0) {
    return misuse();
  }
  if (fake.registers++ == fake.plan.failing_register) return ncclSystemError;
  comm->registered.insert(buffer);
  ++fake.counts.registered;
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t comm_deregister(ncclComm_t comm, void* handle) {
  const Lock lock(fake.mutex);
  if (is_freed(comm) || comm->finalized || comm->clique->moving > 0 || comm->registered.erase(handle) == 0) {
    return misuse();
  }
  --fake.counts.registered;
  ++fake.counts.deregistered;
  return ncclSuccess;
}

ncclResult_t group_start() {
  const Lock lock(fake.mutex);
  ++fake.counts.group_depth;
  if (group.depth++ == 0) group.error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t group_end() {
  const Lock lock(fake.mutex);
  if (group.depth == 0) return misuse();
  --fake.counts.group_depth;
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, Group{});
  if (ended.error != ncclSuccess) return ended.error;
  return ended.comm == nullptr ? ncclSuccess : post(ended.comm, ended.post);
}

}  // namespace

namespace mantissa::testing {

NcclApi make_fake_nccl(const FakeNcclPlan& plan, FakeAllToAll offered) {
  const Lock lock(fake.mutex);
  fake.plan = plan;
  fake.counts = {};
  fake.calls.clear();
  fake.error = ncclSuccess;
  fake.sends = fake.registers = 0;
  fake.cliques.clear();
  fake.live.clear();
  return {.get_version = get_version,
          .get_unique_id = get_unique_id,
          .comm_init_rank_config = comm_init_rank_config,
          .comm_finalize = comm_finalize,
          .comm_destroy = comm_destroy,
          .comm_abort = comm_abort,
          .comm_get_async_error = comm_get_async_error,
          .get_error_string = get_error_string,
          .get_last_error = get_last_error,
          .all_gather = all_gather,
          .send = send,
          .recv = recv,
          .group_start = group_start,
          .group_end = group_end,
          .all_to_all = offered == FakeAllToAll::kOffered ? all_to_all : nullptr,
          .comm_register = comm_register,
          .comm_deregister = comm_deregister};
}

FakeNcclCounts fake_nccl_counts() {
  const Lock lock(fake.mutex);
  return fake.counts;
}

std::vector<FakeNcclCall> fake_nccl_calls() {
  const Lock lock(fake.mutex);
  return fake.calls;
}

bool fake_nccl_has_registered(const void* buffer) {
  const Lock lock(fake.mutex);
  return std::any_of(fake.live.begin(), fake.live.end(),
                     [&](ncclComm_t comm) { return comm->registered.contains(const_cast<void*>(buffer)); });
}

void let_fake_nccl_aborts_return() {
  const Lock lock(fake.mutex);
  fake.plan.aborts_return = true;
  fake.aborts_return.notify_all();
}

void set_fake_nccl_error(ncclResult_t error) {
  const Lock lock(fake.mutex);
  fake.error = error;
}

}  // namespace mantissa::testing

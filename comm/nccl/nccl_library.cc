#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr const char* kHint =
    "install NCCL or add its folder to LD_LIBRARY_PATH; comm.backend: mpi works without it, through host memory";

template <typename Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
}

template <typename Function>
void require(void* library, const std::string& file, const char* symbol, Function& function) {
  find(library, symbol, function);
  if (function == nullptr) {
    throw ConfigError(fmt::format("comm.backend: nccl: {} has no function {}: {}", file, symbol, kHint));
  }
}

}  // namespace

NcclApi load_nccl(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw ConfigError(fmt::format("comm.backend: nccl: {} cannot be opened ({}): {}", file,
                                  reason ? reason : "no reason given", kHint));
  }
  NcclApi api;
  require(library, file, "ncclGetVersion", api.get_version);
  const int version = nccl_version(api);
  if (version < kOldestNccl) {
    throw ConfigError(fmt::format("comm.backend: nccl: {} is NCCL {}, expected {} or newer: {}", file,
                                  nccl_version_text(version), nccl_version_text(kOldestNccl), kHint));
  }
  require(library, file, "ncclGetUniqueId", api.get_unique_id);
  require(library, file, "ncclCommInitRankConfig", api.comm_init_rank_config);
  require(library, file, "ncclCommFinalize", api.comm_finalize);
  require(library, file, "ncclCommDestroy", api.comm_destroy);
  require(library, file, "ncclCommAbort", api.comm_abort);
  require(library, file, "ncclCommGetAsyncError", api.comm_get_async_error);
  require(library, file, "ncclGetErrorString", api.get_error_string);
  require(library, file, "ncclGetLastError", api.get_last_error);
  require(library, file, "ncclAllGather", api.all_gather);
  require(library, file, "ncclSend", api.send);
  require(library, file, "ncclRecv", api.recv);
  require(library, file, "ncclGroupStart", api.group_start);
  require(library, file, "ncclGroupEnd", api.group_end);
  find(library, "ncclAlltoAll", api.all_to_all);
  find(library, "ncclCommDeregister", api.comm_deregister);
  if (api.comm_deregister != nullptr) find(library, "ncclCommRegister", api.comm_register);
  return api;
}

int nccl_version(const NcclApi& api) {
  int version = 0;
  return api.get_version(&version) == ncclSuccess ? version : 0;
}

std::string nccl_version_text(int version) {
  const int major_unit = version < 10000 ? 1000 : 10000;  // the encoding changed after 2.8
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

}  // namespace mantissa

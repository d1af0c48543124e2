// NCCL as a table of functions, loaded from libnccl.so.2 at run time, so that the program also starts without NCCL.
// Tests bring their own table.
#pragma once

#include <nccl.h>

#include <string>

namespace mantissa {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  // ncclAlltoAll is new in 2.28: null for older libraries. Its type is that of ncclAllGather, so that older headers
  // serve as well.
  decltype(&ncclAllGather) all_to_all = nullptr;
  // ncclCommRegister and ncclCommDeregister are new in 2.19: both or neither.
  ncclResult_t (*comm_register)(ncclComm_t comm, void* buffer, size_t bytes, void** handle) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t comm, void* handle) = nullptr;
};

// The oldest NCCL with non-blocking communicators, 2.14.
constexpr int kOldestNccl = 21400;

// ConfigError with the loader's own message if `file` cannot be opened, lacks a function or is too old. The library
// stays loaded: it has its own threads.
NcclApi load_nccl(const std::string& file = "libnccl.so.2");

int nccl_version(const NcclApi& api);
std::string nccl_version_text(int version);  // 22809: "2.28.9"

}  // namespace mantissa

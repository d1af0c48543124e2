// A stand-in for NCCL on the emulated GPU; its ranks are threads of one process. Like a non-blocking communicator, it
// keeps an operation in progress until all ranks have called it, then queues it on all their streams. Calling another
// operation before is an error. Either all ranks capture an operation or no rank does. Graphs synchronize the ranks on
// each run, and the communicator cannot end before them. Tests choose failures and count calls.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl/nccl_connection.h"

namespace mantissa::testing {

enum class FakeStart : uint8_t { kWorks, kNeverEnds, kFails };

struct FakeNcclPlan {
  int version = 22809;
  int polls = 3;  // how often a finished state is still reported as in progress
  FakeStart start = FakeStart::kWorks;
  ncclResult_t id_result = ncclSuccess;
  int failing_send = -1;                      // the n-th ncclSend returns ncclInvalidArgument
  bool operations_end = true;                 // otherwise streams wait until the communicator is aborted
  bool aborts_return = true;                  // otherwise not before let_fake_nccl_aborts_return()
  int failing_register = -1;                  // the n-th ncclCommRegister returns ncclSystemError
  ncclResult_t destroy_result = ncclSuccess;  // result of ncclCommDestroy, after it has freed the communicator
};

// Number of calls over all ranks.
struct FakeNcclCall {
  std::string name;
  size_t count;
  ncclDataType_t type;
};
struct FakeNcclCounts {
  int started = 0, finalized = 0, destroyed = 0, aborted = 0;
  int group_depth = 0;
  int registered = 0, deregistered = 0;  // buffers registered now, and deregistered so far
  int misuses = 0;                       // calls that NCCL would reject, or with a freed handle
};

// Whether the buffer is registered with any communicator.
bool fake_nccl_has_registered(const void* buffer);

enum class FakeAllToAll : uint8_t { kOffered, kMissing };

// The table of functions. Resets all state.
NcclApi make_fake_nccl(const FakeNcclPlan& plan, FakeAllToAll all_to_all = FakeAllToAll::kOffered);
FakeNcclCounts fake_nccl_counts();
std::vector<FakeNcclCall> fake_nccl_calls();
// From now on all communicators report this.
void set_fake_nccl_error(ncclResult_t error);
void let_fake_nccl_aborts_return();

}  // namespace mantissa::testing

// Addresses come from glibc's backtrace(), names from the program's symbol table and the libraries' exported symbols.
// libunwind would do both, but linking it replaces the runtime of C++ exceptions by its _Unwind_* without versions.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fmt/core.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>

#include "core/base/process.h"
#include "core/io/files.h"
#include "tools/run/guard/watchdog.h"

namespace mantissa {
namespace {

constexpr int kFrames = 64;
constexpr size_t kNameLength = 100;
constexpr int kOwnFrames = 2;  // the handler, and the system's return from it

struct Capture {
  std::array<void*, kFrames> frames{};
  int count = 0;
  std::atomic<bool> is_done = false;
};
std::atomic<Capture*> g_capture = nullptr;

void on_capture_signal(int /*number*/) {
  Capture* const capture = g_capture;
  if (capture == nullptr) return;  // a thread that answers too late
  capture->count = backtrace(capture->frames.data(), kFrames);
  capture->is_done = true;
}

struct Function {
  uintptr_t begin = 0, end = 0;  // offsets from the start of the program
  std::string name{};
};

// The functions in the symbol table of the program; none if it was stripped.
std::vector<Function> functions_of_program() {
  const std::string image = text_of_file(program_file()).value_or("");
  std::vector<Function> functions;
  const auto read = [&image](auto& target, size_t offset) {
    if (offset + sizeof(target) > image.size()) return false;
    std::memcpy(&target, image.data() + offset, sizeof(target));
    return true;
  };
  ElfW(Ehdr) header{};
  if (!read(header, 0)) return functions;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    ElfW(Shdr) table{}, names{};
    if (!read(table, header.e_shoff + i * sizeof(table)) || table.sh_type != SHT_SYMTAB) continue;
    if (!read(names, header.e_shoff + table.sh_link * sizeof(names)) || names.sh_offset + names.sh_size > image.size())
      continue;
    ElfW(Sym) symbol{};
    for (size_t at = 0; at < table.sh_size && read(symbol, table.sh_offset + at); at += sizeof(symbol)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0 || symbol.st_name >= names.sh_size)
        continue;
      functions.push_back(
          {symbol.st_value, symbol.st_value + symbol.st_size, image.data() + names.sh_offset + symbol.st_name});
    }
  }
  std::sort(functions.begin(), functions.end(), [](const Function& a, const Function& b) { return a.begin < b.begin; });
  return functions;
}

std::string readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  std::string result = status == 0 ? text.get() : name;
  // Arguments of templates can take pages.
  if (result.size() > kNameLength) result.replace(kNameLength, std::string::npos, "...");
  return result;
}

std::string describe_frame(void* address, const std::vector<Function>& functions) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return fmt::format("{}", address);
  const auto at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string file = std::filesystem::path(info.dli_fname).filename();
  if (info.dli_sname != nullptr) {
    return fmt::format("{}+{:#x} ({})", readable(info.dli_sname), at - reinterpret_cast<uintptr_t>(info.dli_saddr),
                       file);
  }
  Dl_info own{};
  if (dladdr(reinterpret_cast<void*>(&functions_of_program), &own) != 0 && own.dli_fbase == info.dli_fbase) {
    auto after = std::upper_bound(functions.begin(), functions.end(), at - base,
                                  [](uintptr_t value, const Function& f) { return value < f.begin; });
    if (after != functions.begin() && at - base < (--after)->end) {
      return fmt::format("{}+{:#x} ({})", readable(after->name.c_str()), at - base - after->begin, file);
    }
  }
  return fmt::format("{:#x} ({})", at - base, file);
}

}  // namespace

std::string stacks_of_all_threads() {
  const std::vector<Function> functions = functions_of_program();
  std::array<void*, 1> warm_up{};
  backtrace(warm_up.data(), 1);  // loads the unwinder, which a signal handler may not
  const int number = SIGRTMAX - 1;
  struct sigaction action {};  // stays: a late answer must not end the process
  action.sa_handler = on_capture_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
  std::string text;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const int thread = std::atoi(task.path().filename().c_str());
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    text += fmt::format("thread {} ({}){}\n", thread, name, thread == gettid() ? ", which wrote this" : "");
    static std::list<Capture> captures;  // a late answer must find the memory that it was given
    Capture& capture = captures.emplace_back();
    g_capture = &capture;
    if (syscall(SYS_tgkill, getpid(), thread, number) != 0) continue;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!capture.is_done && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    g_capture = nullptr;
    if (!capture.is_done) text += "    it does not answer: the system holds it\n";
    for (int i = kOwnFrames; capture.is_done && i < capture.count; ++i) {
      text += "    " + describe_frame(capture.frames[static_cast<size_t>(i)], functions) + "\n";
    }
  }
  return text;
}

}  // namespace mantissa

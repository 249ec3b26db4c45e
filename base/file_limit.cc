#include "base/file_limit.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Type of the payload of statuses.
constexpr absl::string_view kOpenFiles = "cadre/open-files";

// 0 if it is not known.
uint64_t OpenDescriptors() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  uint64_t open = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++open;
  return open;
}

std::string Remedy(uint64_t limit) {
  return absl::StrCat("for example with 'ulimit -n ", std::max<uint64_t>(1024, limit),
                      "' before the start, LimitNOFILE= of systemd, or --ulimit nofile of a ",
                      "container");
}

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  // Where it is not permitted, ReserveDescriptors reports what is missing.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

absl::Status CheckFreeDescriptor() {
  const int descriptor = eventfd(0, EFD_CLOEXEC);
  if (descriptor >= 0) {
    close(descriptor);
    return absl::OkStatus();
  }
  if (errno == ENFILE) {
    return absl::ResourceExhaustedError(
        "no further file or connection can be opened: all open files of the host (fs.file-max) are "
        "in use");
  }
  if (errno != EMFILE) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no further file or connection can be opened: ", DescriptorLimitText()));
}

uint64_t FreeDescriptors() {
  rlimit limit{};
  const uint64_t open = OpenDescriptors();
  if (open == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, open);
}

absl::Status OpenFilesExhausted(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kOpenFiles, absl::Cord());
  return status;
}

bool IsOpenFilesExhausted(const absl::Status& status) {
  return status.GetPayload(kOpenFiles).has_value();
}

std::string DescriptorLimitText() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat("the limit of open files (RLIMIT_NOFILE) is ", limit.rlim_cur, "; raise it, ",
                      Remedy(2 * limit.rlim_cur));
}

absl::Status ReserveDescriptors(uint64_t more) {
  return CheckDescriptors(OpenDescriptors() + more);
}

absl::Status CheckDescriptors(uint64_t needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the limit of open files (RLIMIT_NOFILE)");
  }
  if (limit.rlim_cur >= needed) return absl::OkStatus();
  // Programs are started with a low soft limit for the sake of select, which is not used here.
  rlimit raised = limit;
  raised.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed);
  if (raised.rlim_cur >= needed && setrlimit(RLIMIT_NOFILE, &raised) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the limit of open files (RLIMIT_NOFILE) is ",
                                                   limit.rlim_cur, ", but ", needed,
                                                   " are needed; raise it, ", Remedy(2 * needed)));
}

}  // namespace cadre

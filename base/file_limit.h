// The limit of open file descriptors of this process (RLIMIT_NOFILE).
//
// A program that reaches it does not fail at one place: accept, connect and open fail one after
// another, and libraries wait and try again. So programs check at their start what they need.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Descriptors that a member of a cluster needs beside those for the connections of its peers: event
// loops and sockets of gRPC, files, the log. A coordinator needs one more for each member.
inline constexpr uint64_t kMemberDescriptors = 32;

// Makes room for `more` descriptors beside the open ones, by raising the soft limit as far as the
// hard limit permits. Errors: ResourceExhausted, which names the limit and the remedy.
absl::Status ReserveDescriptors(uint64_t more);

// Raises the soft limit to the hard one, if that is possible. For programs that do not call select,
// whose sets of descriptors end at 1024.
void RaiseDescriptorLimit();

// ResourceExhausted, which names the limit and the remedy, if no further descriptor can be opened
// now.
absl::Status CheckFreeDescriptor();

// How many descriptors can be opened beside those that are open; 0 if it is not known.
uint64_t FreeDescriptors();

// ResourceExhausted, because no further file could be opened (EMFILE, ENFILE): unlike a full disk,
// this passes when the process, or another one, closes files.
absl::Status OpenFilesExhausted(absl::string_view message);
// Whether the status is from OpenFilesExhausted, however it was annotated.
bool IsOpenFilesExhausted(const absl::Status& status);

// "the limit of open files (RLIMIT_NOFILE) is N; raise it, ...", with the remedy.
std::string DescriptorLimitText();

// The error of ReserveDescriptors if a new process, which inherits the limit, needs this many.
absl::Status CheckDescriptors(uint64_t needed);

}  // namespace cadre

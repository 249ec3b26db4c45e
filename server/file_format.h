// Numbers of formats. Each kind of file of an aggregator has its own: a block file, the meta of a
// version, of states and of a frame, and a checked file. A build raises a number when earlier ones
// could no longer read what it writes. Files of the first format have no number, which is read as
// that of the first format.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

// OK if this build reads the format. Errors: FailedPrecondition with the file and both numbers,
// which is not a loss: the file remains where it is.
absl::Status CheckFormat(absl::string_view path, uint32_t format, uint32_t newest);

}  // namespace cadre

// Tables of epochs against workers, as `cadre measure-epochs` writes them and `cadre plan --epochs`
// reads them: protobuf text that people may edit.
//
// Thread-safe (pure functions but for the file).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// Errors: InvalidArgument naming the field: no batch_per_worker, a target that is not in [0, 1],
// entries without workers or whose epochs are not above 0 or not finite.
absl::Status CheckEpochsTable(const v1::EpochsTable& table);

// Errors: NotFound for no such file; InvalidArgument naming file, line and field for text that is
// no table, and whatever CheckEpochsTable finds.
absl::StatusOr<v1::EpochsTable> ReadEpochsTable(const std::string& path);

// With a comment on top that says what it is; `name` is the run spec's. ReadEpochsTable reads it
// back.
std::string PrintEpochsTable(const v1::EpochsTable& table, absl::string_view name);

}  // namespace cadre

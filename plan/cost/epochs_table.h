// Tables of epochs to a target accuracy by number of workers. `cadre measure-epochs` writes them
// and `cadre plan --epochs` reads them: protobuf text that users may edit.
//
// Thread-safe (pure functions but for the file).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// Errors: InvalidArgument, naming the field, for: no batch_per_worker; a target that is not in [0,
// 1]; entries without workers, or with epochs that are not positive or not finite.
absl::Status CheckEpochsTable(const v1::EpochsTable& table);

// Errors: NotFound if there is no such file; InvalidArgument naming file, line and field for
// malformed text and for errors of CheckEpochsTable.
absl::StatusOr<v1::EpochsTable> ReadEpochsTable(const std::string& path);

// The text that ReadEpochsTable reads, with an explanatory comment; `name` is the run spec's name.
std::string PrintEpochsTable(const v1::EpochsTable& table, absl::string_view name);

}  // namespace cadre

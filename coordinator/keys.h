// Names of the records in the coordinator's store.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// One record, MetaRecord.
inline constexpr char kMetaKey[] = "meta";
// MemberRecord, RunRecord, GroupRecord and CommitRecord lie below these.
inline constexpr char kMemberPrefix[] = "member/";
inline constexpr char kRunPrefix[] = "run/";
inline constexpr char kGroupPrefix[] = "group/";
inline constexpr char kCommitPrefix[] = "commit/";
// LayerTimesRecord lies below this.
inline constexpr char kProfilePrefix[] = "profile/";

std::string MemberKey(absl::string_view member_id);
std::string RunKey(absl::string_view run);
std::string GroupKey(absl::string_view run, uint32_t group);
std::string CommitKey(absl::string_view run, uint32_t round);
// `model`: its key. Characters of the device that are not plain are written as underscores; its
// digest keeps devices apart.
std::string LayerTimesKey(absl::string_view device, absl::string_view model);
// Below these lie all groups, all commits of one run.
std::string GroupsPrefix(absl::string_view run);
std::string CommitsPrefix(absl::string_view run);

// The number in "run-7" or "run-7-name"; 0 if it is no run id.
uint32_t RunNumber(absl::string_view run);

}  // namespace cadre

// Keys of the records in the coordinator's store.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Highest number of a run, and highest generation, that an aggregator may report: numbers that
// continue from there do not wrap around.
inline constexpr uint32_t kMaxReportedNumber = uint32_t{1} << 31;

// Key of the single MetaRecord.
inline constexpr char kMetaKey[] = "meta";
// Prefixes of MemberRecord, RunRecord, GroupRecord and CommitRecord.
inline constexpr char kMemberPrefix[] = "member/";
inline constexpr char kRunPrefix[] = "run/";
// Prefix of the RunSpec of a run, which never changes.
inline constexpr char kSpecPrefix[] = "spec/";
inline constexpr char kGroupPrefix[] = "group/";
inline constexpr char kCommitPrefix[] = "commit/";
// Prefixes of HistoryEntry and ClusterEvent.
inline constexpr char kHistoryPrefix[] = "history/";
inline constexpr char kEventPrefix[] = "event/";
// Prefix of LayerTimesRecord.
inline constexpr char kProfilePrefix[] = "profile/";
// Prefix of DeletedRunRecord.
inline constexpr char kDeletedPrefix[] = "deleted/";
// Prefix of StandingRecord.
inline constexpr char kStandingPrefix[] = "standing/";
// Prefix of CordonedAggregatorRecord.
inline constexpr char kCordonedAggregatorPrefix[] = "aggregator/";
// Prefix of LostRankRecord.
inline constexpr char kLostRankPrefix[] = "lost/";

std::string MemberKey(absl::string_view member_id);
// `name`: of a worker; empty for the host's own record.
std::string StandingKey(absl::string_view host, absl::string_view name);
std::string LostRankKey(absl::string_view program, uint32_t rank);
std::string CordonedAggregatorKey(absl::string_view name);
std::string RunKey(absl::string_view run);
std::string SpecKey(absl::string_view run);
std::string DeletedKey(absl::string_view run);
std::string GroupKey(absl::string_view run, uint32_t group);
std::string CommitKey(absl::string_view run, uint32_t round);
// `model` is the model's key. Special characters of `device` become underscores; its digest keeps
// keys unique.
std::string LayerTimesKey(absl::string_view device, absl::string_view model);
std::string HistoryKey(absl::string_view run, uint64_t number);
std::string EventKey(uint64_t number);
// Prefixes of all groups, of all commits and of the history of one run.
std::string GroupsPrefix(absl::string_view run);
std::string CommitsPrefix(absl::string_view run);
std::string HistoryPrefix(absl::string_view run);

// The smallest key above all keys with this prefix. Keys are printable ASCII, so the last character
// can be increased.
std::string KeyAbove(absl::string_view prefix);

// Parses the record with this key. Errors: DataLoss.
absl::Status ParseRecord(absl::string_view key, absl::string_view bytes,
                         google::protobuf::MessageLite& record);

// Parses the record of a run, and sets its spec from the record with SpecKey; records of earlier
// builds contain the spec themselves. Errors: DataLoss, also if there is no spec.
absl::Status ParseRun(const std::map<std::string, std::string>& records, const std::string& key,
                      v1::RunRecord& run);

// The id of a run, "run-7-name".
std::string RunId(uint32_t number, absl::string_view name);
// The number in a run id such as "run-7" or "run-7-name"; 0 if `run` is not a run id.
uint32_t RunNumber(absl::string_view run);

}  // namespace cadre

// The history of one run: an entry for each committed version and for each evaluation, in the store
// and in memory.
//
// The number of entries is limited, however long the run is. The newest `keep` entries are
// complete. Of the entries before them, every 16th is kept, without its participants, for 16 times
// as many; of those before, every 256th, and so on. An evaluation is kept 256 times as long as a
// commit. So a run of v versions has at most keep * (1 + log16(v / keep)) entries of commits, and
// its curves keep their shape.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events/outbox.h"
#include "proto/cadre/v1/history.pb.h"

namespace cadre {

class History {
 public:
  // Requires: keep >= 1.
  History(absl::string_view run, uint64_t keep) : run_(run), keep_(keep) {}

  // Loads the entries of the run. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);

  // Each adds an entry with the next number, writes it, and erases those that are too old.
  void Add(v1::CommitPoint commit, absl::Time now, Outbox& out);
  void Add(const v1::EvaluationResult& evaluation, absl::Time now, Outbox& out);
  // The group has adopted this version of the newest entries, if it contributed to it. The entry is
  // written again by the next Add or Flush.
  void NoteAdopted(uint32_t version, uint32_t group, float wait_seconds, float pull_seconds);
  // Writes the entries that have changed.
  void Flush(Outbox& out);

  v1::HistoryReply Read(const v1::HistoryRequest& request) const;
  uint64_t newest() const { return entries_.empty() ? 0 : entries_.rbegin()->first; }

 private:
  void Append(v1::HistoryEntry entry, Outbox& out);
  void Drop(Outbox& out);

  const std::string run_;
  const uint64_t keep_;
  std::map<uint64_t, v1::HistoryEntry> entries_;
  // Number of the entry that has changed since it was written; 0: none.
  uint64_t changed_ = 0;
};

}  // namespace cadre

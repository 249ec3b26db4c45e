// The runs whose files an aggregator has: the last OpenRun of each, whether it has ended, and the
// space that it may still need.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class KnownRuns {
 public:
  struct Run {
    // As on disk.
    v1::OpenRun open;
    bool closed = false;
    // What the run may need in all, and the part of it for each version of a copy.
    int64_t space = 0;
    int64_t copy = 0;
  };

  // The bytes that an open run has stored.
  using Stored = std::function<int64_t(const std::string& run, const Run& known)>;
  explicit KnownRuns(Stored stored) : stored_(std::move(stored)) {}

  std::optional<Run> Find(const std::string& run) const;
  // The run is open, or has ended. It needs no other reservation any more.
  void Set(const v1::OpenRun& open, bool closed);
  void Close(const std::string& run) { runs_[run].closed = true; }
  void Erase(const std::string& run) { runs_.erase(run); }

  // Reserves `needed` bytes for a run until Set or Release, if `free` bytes have room for them and
  // for all other runs. Returns how many bytes are reserved for others if there is no room.
  std::optional<int64_t> Reserve(const std::string& run, int64_t needed, int64_t free);
  void Release(const std::string& run) { opening_.erase(run); }
  // Sum over the open runs of what they may still need, and what is reserved for others.
  int64_t Reserved() const;

 private:
  const Stored stored_;
  std::map<std::string, Run> runs_;
  // Bytes that are reserved for runs that are being opened for the first time.
  std::map<std::string, int64_t> opening_;
};

}  // namespace cadre

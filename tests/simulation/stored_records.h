// Records in a coordinator's store, as invariants read them.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "coordinator/store/keys.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre::simulation {

using StoredRecords = std::map<std::string, std::string>;

template <typename Record>
Record Parse(const std::string& bytes) {
  Record record;
  record.ParseFromString(bytes);
  return record;
}

template <typename Record>
std::optional<Record> Read(const StoredRecords& store, const std::string& key) {
  auto it = store.find(key);
  if (it == store.end()) return std::nullopt;
  return Parse<Record>(it->second);
}

// The record of a run, with its spec.
inline v1::RunRecord RunIn(const StoredRecords& store, const std::string& key) {
  v1::RunRecord run;
  ParseRun(store, key, run).IgnoreError();
  return run;
}

inline bool SameParticipants(const google::protobuf::RepeatedPtrField<v1::Participant>& a,
                             const google::protobuf::RepeatedPtrField<v1::Participant>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const v1::Participant& x, const v1::Participant& y) {
                      return x.SerializeAsString() == y.SerializeAsString();
                    });
}

// Whether both commits make the version in the same way.
inline bool SameMaking(const v1::CommitRecord& a, const v1::CommitRecord& b) {
  return SameParticipants(a.participants(), b.participants()) &&
         a.has_restores() == b.has_restores() && a.restores() == b.restores();
}

}  // namespace cadre::simulation

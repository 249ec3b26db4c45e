// Records in a coordinator's store, as invariants read them.
#pragma once

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

}  // namespace cadre::simulation

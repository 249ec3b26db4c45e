// How a run encodes what groups and aggregators exchange, and how much of the model a round
// exchanges (run.proto, Coding and Fragments).
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The coding with all defaults filled in; nothing for values in fp32.
std::optional<v1::Coding> CodingOf(const v1::Coding& coding);

// Whether contributions have changes that may have to be carried over to later ones: they are
// coded, or may be late.
bool KeepsChanges(const v1::Averaging& averaging);

// Number of fragments; 1: every round exchanges the whole model.
uint32_t FragmentsOf(const v1::Averaging& averaging);

// Whether ranks and shards exchange whole units (model/exchange_units.h).
bool ExchangesUnits(const v1::Averaging& averaging);

// Whether groups on GPUs code contributions there. Otherwise versions are merged with values of the
// group, or contributions are not coded.
bool CodesOnDevice(const v1::Averaging& averaging);

// Steps from one round to the next; 0: there are no rounds.
uint32_t StepsOfRound(const v1::Averaging& averaging);

}  // namespace cadre

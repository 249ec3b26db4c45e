// Parse, IsError and IsOk, for the tests of workers.
#pragma once

#include "tests/base/expect.h"

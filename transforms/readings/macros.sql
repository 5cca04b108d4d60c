-- Shipped with the product: what DuckDB lacks for meter files. Each macro has its table of cases in macro_cases.csv.

-- a finite number; anything else is null
create macro num(x) as case when isfinite(try_cast(x as double)) then try_cast(x as double) end;

-- the same with marks between thousands and another decimal mark: num_marks('1.234,5', '.', ',')
create macro num_marks(x, thousands, mark) as num(replace(replace(cast(x as varchar), thousands, ''), mark, '.'));

-- a wall time to its instant: null where the clock skipped it, the first of two where it is doubled, unless told
create macro wall(l, zone) as case when timezone(zone, timezone(zone, l)) = l then timezone(zone, l) end;
create macro doubled(l, zone) as timezone(zone, timezone(zone, l) - interval 1 hour) = l;
create macro local_time(l, zone, later := false) as
  wall(l, zone) - case when doubled(l, zone) and not later then interval 1 hour else interval 0 hour end;

-- a day and its clock, also '24:00' and '25:30', which lie on the next day
create macro day_clock(day, clock, zone) as
  local_time(cast(cast(day as date) as timestamp) + cast(clock as interval), zone);

-- the beginning of the n-th interval of a local day, from 1: right on days of 23 and 25 hours
create macro elapsed(day, n, len, zone) as
  timezone(zone, cast(cast(day as date) as timestamp)) + (cast(n as integer) - 1) * len;

-- '2024-11-03 01:00:00 EDT'; letters that are not listed make a null
create macro zone_letters(z) as map {'EST': -5, 'EDT': -4, 'CST': -6, 'CDT': -5, 'MST': -7, 'MDT': -6, 'PST': -8,
  'PDT': -7, 'GMT': 0, 'UTC': 0, 'WET': 0, 'WEST': 1, 'BST': 1, 'CET': 1, 'CEST': 2, 'EET': 2, 'EEST': 3, 'AEST': 10,
  'AEDT': 11}[z];
create macro lettered_time(x) as
  timezone('UTC', try_cast(x[:19] as timestamp)) - zone_letters(trim(x[20:])) * interval 1 hour;

-- a count since 1970 of seconds, milliseconds or microseconds, told apart by its size
create macro epoch_time(n) as case
  when abs(try_cast(n as double)) > 1e14 then make_timestamptz(try_cast(n as bigint))
  when abs(try_cast(n as double)) > 1e11 then make_timestamptz(try_cast(n as bigint) * 1000)
  else to_timestamp(try_cast(n as double)) end;

-- an instant with its offset
create macro instant(x) as coalesce(try_cast(cast(x as varchar) as timestamptz), try_strptime(cast(x as varchar),
  ['%Y-%m-%d %H:%M:%S %z', '%Y-%m-%dT%H:%M:%S%z', '%Y-%m-%d %H:%M %z']));

-- a stamp shortly before a boundary belongs to the boundary
create macro rounded(t, len, within) as time_bucket(len, t + within);

-- the name of a file without its folder and endings
create macro file_stem(f) as regexp_extract(f, '([^/]+?)(\.[^./]+)*$', 1);

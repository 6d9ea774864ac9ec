// Mirrors above a chequered plane, in the light of a lamp with soft shadows; the clock turns them.
#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 6 }
camera { location <0, 3, -8> look_at <0, 1, 0> }
light_source { <6, 9, -6> rgb 1 area_light <2, 0, 0>, <0, 0, 2>, 3, 3 adaptive 1 jitter }
plane { y, 0 pigment { checker rgb <0.9, 0.9, 0.8> rgb <0.2, 0.3, 0.4> } finish { reflection 0.1 } }
#declare Ball = sphere { <0, 0, 0>, 0.45 pigment { rgb <0.8, 0.5, 0.2> } finish { phong 0.8 reflection 0.4 } }
union {
  #for (Column, -2, 2)
    #for (Row, 0, 3)
      object { Ball translate <Column, 0.5 + Row * 0.8, mod(Row, 2) * 0.5> }
    #end
  #end
  rotate y * 40 * clock
}

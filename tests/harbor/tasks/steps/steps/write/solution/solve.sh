#!/bin/bash
printf "a\nb\nc\n" >lines
